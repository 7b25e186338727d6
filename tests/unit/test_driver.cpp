// The driver table: own declarations agree with cuda.h and nvrtc.h; a machine without CUDA is told
// so.
#include "gpu/copies.h"
#include "gpu/graph.h"
#include "tests/test.h"
#if defined(__has_include) && !defined(TEST_NO_CUDA_HEADERS)
#if __has_include("/usr/local/cuda/include/cuda.h") && \
                  __has_include("/usr/local/cuda/include/nvrtc.h")
#include "/usr/local/cuda/include/cuda.h"
#include "/usr/local/cuda/include/nvrtc.h"
#define HAS_CUDA_HEADERS 1
#endif
#endif
#include <type_traits>

#ifdef HAS_CUDA_HEADERS
// Two types are passed alike: both pointers, both floating, or integers and enums of the same size.
template <class A, class B> constexpr bool is_alike()
{
    constexpr bool pointer = std::is_pointer<A>::value;
    constexpr bool floating = std::is_floating_point<A>::value;
    return sizeof(A) == sizeof(B) && pointer == std::is_pointer<B>::value &&
           floating == std::is_floating_point<B>::value;
}

// What a pointer parameter points to must have the same size as well, where both are complete.
template <class A, class B> struct same_target {
    static constexpr bool value = is_alike<A, B>();
};
template <> struct same_target<void, void> {
    static constexpr bool value = true;
};
template <class B> struct same_target<void, B> {
    static constexpr bool value = true;
};
template <class A> struct same_target<A, void> {
    static constexpr bool value = true;
};
template <class... A, class... B> struct same_target<void(A...), void(B...)> {
    static constexpr bool value = sizeof...(A) == sizeof...(B);
};

template <class A, class B, bool = std::is_pointer<A>::value&& std::is_pointer<B>::value>
struct same_parameter {
    static constexpr bool value = is_alike<A, B>();
};
template <class A, class B> struct same_parameter<A, B, true> {
    typedef typename std::remove_pointer<A>::type TA;
    typedef typename std::remove_pointer<B>::type TB;
    // an opaque struct of theirs is a void of ours
    static constexpr bool value =
        same_target<typename std::remove_cv<TA>::type, typename std::remove_cv<TB>::type>::value &&
        std::is_const<TA>::value == std::is_const<TB>::value;
};

template <class A, class B> struct same_function {
    static constexpr bool value = false;
};
template <class R, class S, class... A, class... B> struct same_function<R (*)(A...), S(B...)> {
    template <size_t nA, size_t nB, bool = nA == nB> struct compare {
        static constexpr bool value = false;
    };
    template <size_t nA, size_t nB> struct compare<nA, nB, true> {
        template <bool...> struct all;
        static constexpr bool value =
            std::is_same<all<true, same_parameter<A, B>::value...>,
                         all<same_parameter<A, B>::value..., true>>::value;
    };
    static constexpr bool value =
        sizeof(R) == sizeof(S) && compare<sizeof...(A), sizeof...(B)>::value;
};
#endif

TEST(prototypes_agree_with_the_cuda_headers)
{
#ifdef HAS_CUDA_HEADERS
    int n = 0;
#define CHECK_PROTOTYPE(field, symbol, parameters)                                         \
    static_assert(same_function<decltype(damacy__driver::field), decltype(symbol)>::value, \
                  "prototype of " #symbol);                                                \
    n++;
    DAMACY__CUDA_FUNCTIONS(CHECK_PROTOTYPE)
    DAMACY__NVRTC_FUNCTIONS(CHECK_PROTOTYPE)
#if CUDA_VERSION >= 12080
    DAMACY__CUDA_NEW_FUNCTIONS(CHECK_PROTOTYPE)
#endif
    printf("# %d prototypes\n", n);
    CHECK(n > 50);
#else
    SKIP("no cuda.h and nvrtc.h in /usr/local/cuda/include");
#endif
}

TEST(a_wrong_prototype_would_be_noticed)
{
#ifdef HAS_CUDA_HEADERS
    typedef int (*right)(uint64_t*, size_t);
    typedef int (*other_size)(uint32_t*, size_t);
    typedef int (*other_count)(uint64_t*);
    typedef int (*other_kind)(uint64_t, size_t);
    CHECK((same_function<right, decltype(cuMemAlloc_v2)>::value));
    CHECK(!(same_function<other_size, decltype(cuMemAlloc_v2)>::value));
    CHECK(!(same_function<other_count, decltype(cuMemAlloc_v2)>::value));
    CHECK(!(same_function<other_kind, decltype(cuMemAlloc_v2)>::value));
#else
    SKIP("no cuda.h and nvrtc.h in /usr/local/cuda/include");
#endif
}

TEST(constants_agree_with_the_cuda_headers)
{
#ifdef HAS_CUDA_HEADERS
    const struct {
        long long ours, theirs;
    } pairs[] = {
        {DAMACY__CUDA_OK, CUDA_SUCCESS},
        {DAMACY__CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE},
        {DAMACY__CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY},
        {DAMACY__CUDA_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED},
        {DAMACY__CUDA_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED},
        {DAMACY__CUDA_DEVICE_UNAVAILABLE, CUDA_ERROR_DEVICE_UNAVAILABLE},
        {DAMACY__CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE},
        {DAMACY__CUDA_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE},
        {DAMACY__CUDA_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE},
        {DAMACY__CUDA_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT},
        {DAMACY__CUDA_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU},
        {DAMACY__CUDA_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE},
        {DAMACY__CUDA_INVALID_PTX, CUDA_ERROR_INVALID_PTX},
        {DAMACY__CUDA_NVLINK_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE},
        {DAMACY__CUDA_UNSUPPORTED_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION},
        {DAMACY__CUDA_CONTAINED, CUDA_ERROR_CONTAINED},
        {DAMACY__CUDA_NOT_FOUND, CUDA_ERROR_NOT_FOUND},
        {DAMACY__CUDA_NOT_READY, CUDA_ERROR_NOT_READY},
        {DAMACY__CUDA_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS},
        {DAMACY__CUDA_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_TIMEOUT},
        {DAMACY__CUDA_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED},
        {DAMACY__CUDA_ASSERT, CUDA_ERROR_ASSERT},
        {DAMACY__CUDA_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED},
        {DAMACY__CUDA_HARDWARE_STACK, CUDA_ERROR_HARDWARE_STACK_ERROR},
        {DAMACY__CUDA_ILLEGAL_INSTRUCTION, CUDA_ERROR_ILLEGAL_INSTRUCTION},
        {DAMACY__CUDA_MISALIGNED_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS},
        {DAMACY__CUDA_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_ADDRESS_SPACE},
        {DAMACY__CUDA_INVALID_PC, CUDA_ERROR_INVALID_PC},
        {DAMACY__CUDA_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED},
        {DAMACY__CUDA_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED},
        {DAMACY__CUDA_UNKNOWN, CUDA_ERROR_UNKNOWN},
        {DAMACY__ATTRIBUTE_SHARED_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
        {DAMACY__ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
        {DAMACY__ATTRIBUTE_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
        {DAMACY__ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
        {DAMACY__ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
        {DAMACY__ATTRIBUTE_SHARED_PER_MULTIPROCESSOR,
         CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
        {DAMACY__ATTRIBUTE_SHARED_PER_BLOCK_OPTIN,
         CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
        {DAMACY__ATTRIBUTE_HOST_REGISTER, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
        {DAMACY__ATTRIBUTE_HOST_POINTERS,
         CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
        {DAMACY__ATTRIBUTE_READ_ONLY_REGISTER,
         CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED},
        {DAMACY__STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING},
        {DAMACY__EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC},
        {DAMACY__EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING},
        {DAMACY__HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE},
        {DAMACY__HOST_ALLOC_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP},
        {DAMACY__HOST_REGISTER_MAPPED, CU_MEMHOSTREGISTER_DEVICEMAP},
        {DAMACY__HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE},
        {DAMACY__HOST_REGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY},
        {DAMACY__POINTER_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT},
        {DAMACY__POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE},
        {DAMACY__POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
        {DAMACY__MEMORY_TYPE_HOST, CU_MEMORYTYPE_HOST},
        {DAMACY__MEMORY_TYPE_DEVICE, CU_MEMORYTYPE_DEVICE},
        {DAMACY__FUNCTION_MAX_THREADS, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
        {DAMACY__FUNCTION_STATIC_SHARED, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
        {DAMACY__FUNCTION_LOCAL_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES},
        {DAMACY__FUNCTION_REGISTERS, CU_FUNC_ATTRIBUTE_NUM_REGS},
        {DAMACY__FUNCTION_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        CHECK_EQ(pairs[i].ours, pairs[i].theirs);
#else
    SKIP("no cuda.h and nvrtc.h in /usr/local/cuda/include");
#endif
}

TEST(records_of_new_functions_agree_with_the_cuda_headers)
{
#if defined(HAS_CUDA_HEADERS) && CUDA_VERSION >= 12080
    CHECK_EQ(sizeof(damacy__launch_attribute), sizeof(CUlaunchAttribute));
    CHECK_EQ(offsetof(damacy__launch_attribute, value), offsetof(CUlaunchAttribute, value));
    CHECK_EQ(sizeof(damacy__launch_config), sizeof(CUlaunchConfig));
    CHECK_EQ(offsetof(damacy__launch_config, block), offsetof(CUlaunchConfig, blockDimX));
    CHECK_EQ(offsetof(damacy__launch_config, shared), offsetof(CUlaunchConfig, sharedMemBytes));
    CHECK_EQ(offsetof(damacy__launch_config, stream), offsetof(CUlaunchConfig, hStream));
    CHECK_EQ(offsetof(damacy__launch_config, attributes), offsetof(CUlaunchConfig, attrs));
    CHECK_EQ(offsetof(damacy__launch_config, n_attributes), offsetof(CUlaunchConfig, numAttrs));
    CHECK_EQ(DAMACY__LAUNCH_DIVISION, CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
    CHECK_EQ(sizeof(damacy__graph_kernel), sizeof(CUDA_KERNEL_NODE_PARAMS));
    CHECK_EQ(offsetof(damacy__graph_kernel, block), offsetof(CUDA_KERNEL_NODE_PARAMS, blockDimX));
    CHECK_EQ(offsetof(damacy__graph_kernel, shared),
             offsetof(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes));
    CHECK_EQ(offsetof(damacy__graph_kernel, parameters),
             offsetof(CUDA_KERNEL_NODE_PARAMS, kernelParams));
    CHECK_EQ(offsetof(damacy__graph_kernel, other), offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    CHECK_EQ(offsetof(damacy__graph_kernel, context), offsetof(CUDA_KERNEL_NODE_PARAMS, ctx));
    CHECK_EQ(sizeof(((damacy__launch_attribute*)0)->value), sizeof(CUkernelNodeAttrValue));
    CHECK_EQ(DAMACY__CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
#else
    SKIP("no cuda.h of CUDA 12.8 or later in /usr/local/cuda/include");
#endif
}

TEST(every_function_is_listed_once)
{
    static const char* const symbols[] = {
#define SYMBOL_NAME(field, symbol, parameters) #symbol,
        DAMACY__CUDA_FUNCTIONS(SYMBOL_NAME) DAMACY__CUDA_NEW_FUNCTIONS(SYMBOL_NAME)
            DAMACY__NVRTC_FUNCTIONS(SYMBOL_NAME)};
    const size_t n = sizeof symbols / sizeof symbols[0];
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            CHECK(strcmp(symbols[i], symbols[k]) != 0);
}

TEST(machine_without_a_driver_is_told_so_and_the_table_stays_empty)
{
    damacy__driver driver;
    damacy_error err;
    memset(&driver, 0, sizeof driver);
    memset(&err, 0, sizeof err);
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))
        SKIP("this machine has a CUDA driver");
    CHECK_EQ(damacy__driver_load(&driver, &err), DAMACY_UNSUPPORTED);
    CHECK_EQ(err.status, DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "libcuda.so.1");
    CHECK(driver.init == NULL);
}

TEST(nvrtc_is_found_where_there_is_one)
{
    damacy__driver driver;
    damacy_error err;
    memset(&driver, 0, sizeof driver);
    memset(&err, 0, sizeof err);
    const damacy_status status = damacy__driver_load_nvrtc(&driver, &err);
    if (status != DAMACY_OK) {
        CHECK_EQ(status, DAMACY_UNSUPPORTED);
        CHECK_HAS(err.message, "libnvrtc.so.13");
        CHECK_EQ(driver.nvrtc_major, 0);
        SKIP("no libnvrtc on this machine");
    }
    printf("# NVRTC %d.%d from %s\n", driver.nvrtc_major, driver.nvrtc_minor, driver.nvrtc_name);
    CHECK(driver.nvrtc_major >= 11);
    CHECK(driver.nvrtc_create != NULL);
}

TEST(nvrtc_of_a_newer_major_version_than_the_driver_comes_last)
{
    damacy__driver driver;
    damacy_error err;
    memset(&driver, 0, sizeof driver);
    memset(&err, 0, sizeof err);
    driver.version = 11080;
    if (damacy__driver_load_nvrtc(&driver, &err) != DAMACY_OK)
        SKIP("no libnvrtc on this machine");
    CHECK(driver.nvrtc_major == 11 || dlopen("libnvrtc.so.11.2", RTLD_NOW | RTLD_LOCAL) == NULL);
}

TEST_MAIN
