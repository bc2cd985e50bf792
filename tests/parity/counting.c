// Answers reads of one 32-bit number with GPUMEM_TEST_COUNT. The virtual GPU computes nothing, so PyTorch is told that
// no element of a mask is set; with this library before the device it is told how many are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICE_TO_HOST = 2 };

typedef int (*copy_function)(void *, const void *, size_t, int, void *);

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    copy_function copy = (copy_function)dlsym(RTLD_NEXT, "cudaMemcpyAsync");
    int status = copy(to, from, bytes, kind, stream);
    if (status == 0 && kind == DEVICE_TO_HOST && bytes == sizeof(int32_t)) {
        int32_t count = atoi(getenv("GPUMEM_TEST_COUNT"));
        memcpy(to, &count, sizeof count);
    }
    return status;
}
