// Functions of the CUDA driver that the library's own table lacks.
#pragma once
#include <cstring>
#include <dlfcn.h>

// Fills a function pointer; false if the driver has no such function.
static bool driver_symbol(void* library, const char* symbol, void* field)
{
    void* const address = library ? dlsym(library, symbol) : nullptr;
    memcpy(field, &address, sizeof address);
    return address != nullptr;
}
