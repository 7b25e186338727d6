// Clears the output of chunks that failed, so that nothing of an earlier chunk shows.
#include "kernels/warp.cuh"

// A CTA per job, over a grid of any size: zeroes the expected output of jobs whose status is not
// OK.
extern "C" __global__ __launch_bounds__(256) void damacy_clear_failed(uint64_t jobs,
                                                                      uint64_t results, uint64_t n,
                                                                      uint32_t max)
{
    const uint32_t count = damacy__min(*(const uint32_t*)(uintptr_t)n, max);
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const damacy__job job = ((const damacy__job*)(uintptr_t)jobs)[i];
        if (((const damacy__job_result*)(uintptr_t)results)[i].status == DAMACY__JOB_OK)
            continue;
        const uint64_t size =
            job.expected_size < job.dst_capacity ? job.expected_size : job.dst_capacity;
        uint8_t* const dst = (uint8_t*)(uintptr_t)job.dst;
        for (uint64_t k = threadIdx.x; k < size; k += blockDim.x)
            dst[k] = 0;
    }
}
