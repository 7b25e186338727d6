// The Zstandard decoder on a real device, for tests and benchmarks: kernels are compiled from the
// kernels/ folder of the working directory, jobs are uploaded, decoded through
// src/stage/zstd_launch.h and fetched back.
#pragma once
#include "gpu/memory.h"
#include "stage/zstd_launch.h"
#include "tests/device_open.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

struct zstd_device {
    damacy__driver driver = {};
    damacy__alloc heap = {};
    damacy__device device = {};
    damacy__compiler compiler = {};
    damacy__zstd_kernels kernels = {};
    damacy__stream stream = nullptr;
    damacy_error err = {};
    std::vector<std::string> names, texts;
    std::vector<damacy__source> sources;

    // Every file of kernels/; the strings stay where they are.
    void read_sources()
    {
        DIR* const dir = opendir("kernels");
        while (const dirent* e = dir ? readdir(dir) : nullptr) {
            const std::string name = std::string("kernels/") + e->d_name;
            std::ifstream file(name);
            std::stringstream text;
            text << file.rdbuf();
            if (name.find(".cu") != std::string::npos || name.find(".h") != std::string::npos) {
                names.push_back(name);
                texts.push_back(text.str());
            }
        }
        if (dir) {
            closedir(dir);
        }
        for (size_t i = 0; i < names.size(); i++) {
            sources.push_back({names[i].c_str(), texts[i].c_str()});
        }
    }

    // Fails where there is no device; a device on which the kernels cannot be had ends the program.
    damacy_status open()
    {
        damacy__device_config config = {};
        config.max_bytes = 64ull << 30;
        DAMACY__TRY(damacy__driver_load(&driver, &err));
        DAMACY__TRY(damacy__device_open(&device, &driver, &heap, &config, &err));
        check(damacy__device_enter(&device, &err));
        read_sources();
        check(damacy__compiler_init(&compiler, &heap, &driver, device.architecture, sources.data(),
                                    (uint32_t)sources.size(), "", &err));
        compiler.has_line_info = true;
        check(damacy__zstd_kernels_start(&kernels, &device, &compiler, &err));
        check(damacy__zstd_kernels_finish(&kernels, &device, &err));
        check(damacy__stream_open(&device, false, &stream, &err));
        return DAMACY_OK;
    }

    void close()
    {
        if (device.driver) {
            damacy__stream_close(&device, stream);
            damacy__zstd_kernels_deinit(&kernels, &device);
            damacy__compiler_deinit(&compiler);
            damacy__device_leave(&device);
            damacy__device_close(&device);
        }
    }

    uint64_t take(uint64_t size)
    {
        uint64_t address = 0;
        if (damacy__device_alloc(&device, size ? size : 1, "test", &address, &err) != DAMACY_OK) {
            fprintf(stderr, "%s\n", err.message);
            abort();
        }
        return address;
    }

    void give(uint64_t address, uint64_t size)
    {
        damacy__device_free(&device, address, size ? size : 1);
    }

    void check(damacy_status status)
    {
        if (status != DAMACY_OK) {
            fprintf(stderr, "%s\n", err.message);
            abort();
        }
    }

    void upload(uint64_t to, const void* from, uint64_t size)
    {
        if (size) {
            check(damacy__copy_to_device(&device, to, from, size, stream, &err));
            sync();
        }
    }

    void fetch(void* to, uint64_t from, uint64_t size)
    {
        if (size) {
            check(damacy__copy_to_host(&device, to, from, size, stream, &err));
            sync();
        }
    }

    void sync()
    {
        check(damacy__device_check(&device, driver.stream_synchronize(stream), &err, "kernels"));
    }
};
