/* Preloaded into a real process, makes its disk fail on command.

   FAILING_DISK names a directory. While it holds a file
     sync   every fsync and fdatasync fails with EIO, and nothing is written out;
     index  every write to a file under .../index/ does.
*/

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_asked(const char *name)
{
    char path[4096];
    const char *directory = getenv("FAILING_DISK");
    if (directory == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

static int is_index(int descriptor)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, "/index/") != NULL;
}

static int sync_by(const char *name, int descriptor)
{
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    int before = errno;
    if (is_asked("sync")) {
        errno = EIO;
        return -1;
    }
    errno = before;
    return real(descriptor);
}

int fdatasync(int descriptor)
{
    return sync_by("fdatasync", descriptor);
}

int fsync(int descriptor)
{
    return sync_by("fsync", descriptor);
}

ssize_t write(int descriptor, const void *data, size_t length)
{
    static ssize_t (*real)(int, const void *, size_t);
    int before = errno;
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "write");
    if (is_asked("index") && is_index(descriptor)) {
        errno = EIO;
        return -1;
    }
    errno = before;
    return real(descriptor, data, length);
}
