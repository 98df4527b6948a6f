/* A disk that fails: preloaded (LD_PRELOAD), it counts the calls below a folder that change the disk, or read it, and
   lets some of them fail, or copies the folder before each. `failing_disk.py` compiles and drives it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHANGE = 1, READ = 2, MOST_UNSYNCED = 4096, MOST_LOGGED = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int is_inside; /* of a copy of the folder: its own calls do not count */
static __thread char seen[2 * PATH_MAX]; /* path of the call that this thread makes */
static char root[PATH_MAX], photos[PATH_MAX], calls[MOST_LOGGED];
static size_t num_logged;
static int watched, error_number;
static long first, last, count;
static ino_t unsynced[MOST_UNSYNCED]; /* files with bytes that a loss of power would lose */
static int num_unsynced;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* From now on count the calls of these kinds below `folder`, and let numbers `from` to `to` fail with `error`. With a
   folder `to_photos`, copy `folder` there before each call: as it is, and as it would be after a loss of power. */
void watch_disk(const char *folder, int kinds, long from, long to, int error, const char *to_photos) {
  pthread_mutex_lock(&lock);
  snprintf(root, sizeof root, "%s", folder);
  snprintf(photos, sizeof photos, "%s", to_photos);
  watched = kinds, first = from, last = to, error_number = error, count = 0, num_unsynced = 0;
  num_logged = calls[0] = 0;
  pthread_mutex_unlock(&lock);
}

long calls_of_disk(void) { return count; }

/* A line for each of these calls: its name and path. */
const char *log_of_disk(void) { return calls; }

static int path_of(int descriptor, char *path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, size - 1);
  path[length < 0 ? 0 : length] = 0;
  return length > 0;
}

static int is_within(const char *path) {
  size_t length = strlen(root);
  return !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int is_file_within(int descriptor) {
  return watched && !is_inside && path_of(descriptor, seen, sizeof seen) && is_within(seen);
}

static int is_path_within(int folder, const char *name) {
  char path[PATH_MAX];
  if (!watched || is_inside) return 0;
  path[0] = 0;
  if (name[0] != '/' && !(folder == AT_FDCWD ? getcwd(path, sizeof path) != NULL : path_of(folder, path, sizeof path)))
    return 0;
  snprintf(seen, sizeof seen, "%s%s%s", path, path[0] ? "/" : "", name);
  return is_within(seen);
}

static int find_unsynced(ino_t file) {
  int place = 0;
  while (place < num_unsynced && unsynced[place] != file) place++;
  return place;
}

static void mark(int descriptor, int is_synced) {
  struct stat status;
  if (!is_file_within(descriptor) || fstat(descriptor, &status)) return;
  pthread_mutex_lock(&lock);
  int place = find_unsynced(status.st_ino);
  if (is_synced && place < num_unsynced) unsynced[place] = unsynced[--num_unsynced];
  if (!is_synced && place == num_unsynced && num_unsynced < MOST_UNSYNCED) unsynced[num_unsynced++] = status.st_ino;
  pthread_mutex_unlock(&lock);
}

static char copy_to[2 * PATH_MAX];
static int is_power_lost;

static int copy_entry(const char *path, const struct stat *status, int kind, struct FTW *place) {
  char copy[3 * PATH_MAX], buffer[1 << 16];
  snprintf(copy, sizeof copy, "%s%s", copy_to, path + strlen(root));
  if (kind == FTW_D) return mkdir(copy, 0700) && errno != EEXIST;
  if (kind != FTW_F || !S_ISREG(status->st_mode)) return 0;
  int from = open(path, O_RDONLY), to = open(copy, O_WRONLY | O_CREAT, 0600);
  int is_lost = is_power_lost && find_unsynced(status->st_ino) < num_unsynced;
  for (ssize_t size; !is_lost && (size = read(from, buffer, sizeof buffer)) > 0;)
    if (write(to, buffer, size) != size) break;
  close(from), close(to);
  return 0;
}

static void take_photo(const char *suffix) {
  if (!photos[0]) return;
  is_inside = 1;
  for (is_power_lost = 0; is_power_lost < 2; is_power_lost++) {
    snprintf(copy_to, sizeof copy_to, "%s/%s%ld%s", photos, is_power_lost ? "power" : "kill", count, suffix);
    nftw(root, copy_entry, 16, FTW_PHYS);
  }
  is_inside = 0;
}

/* Return 1, with errno, if the call that comes now is to fail. */
static int fails(int is_counted, int kind, const char *call) {
  if (!is_counted || !(watched & kind)) return 0;
  pthread_mutex_lock(&lock);
  count++;
  if (num_logged < MOST_LOGGED - sizeof seen - 100) num_logged += sprintf(calls + num_logged, "%s %s\n", call, seen);
  take_photo("");
  int is_failing = first <= count && count <= last;
  pthread_mutex_unlock(&lock);
  errno = is_failing ? error_number : errno;
  return is_failing;
}

static int kind_of(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) ? CHANGE : READ; }

#define OPEN(name)                                                                   \
  int name(const char *path, int flags, ...) {                                       \
    va_list rest;                                                                    \
    va_start(rest, flags);                                                           \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;        \
    va_end(rest);                                                                    \
    if (fails(is_path_within(AT_FDCWD, path), kind_of(flags), __func__)) return -1;            \
    return REAL(name)(path, flags, mode);                                            \
  }
#define OPENAT(name)                                                                 \
  int name(int folder, const char *path, int flags, ...) {                           \
    va_list rest;                                                                    \
    va_start(rest, flags);                                                           \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;        \
    va_end(rest);                                                                    \
    if (fails(is_path_within(folder, path), kind_of(flags), __func__)) return -1;              \
    return REAL(name)(folder, path, flags, mode);                                    \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int descriptor, const void *bytes, size_t size) {
  size_t half = 0;
  if (is_file_within(descriptor)) {
    if (fails(1, CHANGE, __func__)) return -1;
    mark(descriptor, 0);
    if (photos[0] && size > 1) { /* a copy with half of the bytes */
      ssize_t written = REAL(write)(descriptor, bytes, size / 2);
      if (written < 0) return -1;
      half = written;
      pthread_mutex_lock(&lock);
      take_photo("torn");
      pthread_mutex_unlock(&lock);
    }
  }
  ssize_t rest = REAL(write)(descriptor, (const char *)bytes + half, size - half);
  return rest < 0 ? rest : (ssize_t)half + rest;
}

#define ON_FILE(kind, is_synced, type, name, arguments, values)                      \
  type name arguments {                                                              \
    if (fails(is_file_within(descriptor), kind, __func__)) return -1;                          \
    if (kind == CHANGE) mark(descriptor, is_synced);                                 \
    return REAL(name) values;                                                        \
  }
ON_FILE(CHANGE, 0, ssize_t, writev, (int descriptor, const struct iovec *parts, int number), (descriptor, parts, number))
ON_FILE(CHANGE, 0, ssize_t, pwrite, (int descriptor, const void *bytes, size_t size, off_t place), (descriptor, bytes, size, place))
ON_FILE(CHANGE, 0, ssize_t, pwrite64, (int descriptor, const void *bytes, size_t size, off64_t place), (descriptor, bytes, size, place))
ON_FILE(CHANGE, 0, int, ftruncate, (int descriptor, off_t size), (descriptor, size))
ON_FILE(CHANGE, 0, int, ftruncate64, (int descriptor, off64_t size), (descriptor, size))
ON_FILE(CHANGE, 1, int, fsync, (int descriptor), (descriptor))
ON_FILE(CHANGE, 1, int, fdatasync, (int descriptor), (descriptor))
ON_FILE(READ, 1, ssize_t, read, (int descriptor, void *bytes, size_t size), (descriptor, bytes, size))
ON_FILE(READ, 1, ssize_t, pread, (int descriptor, void *bytes, size_t size, off_t place), (descriptor, bytes, size, place))
ON_FILE(READ, 1, ssize_t, pread64, (int descriptor, void *bytes, size_t size, off64_t place), (descriptor, bytes, size, place))

#define ON_PATH(folder, path, name, arguments, values)                               \
  int name arguments {                                                               \
    return fails(is_path_within(folder, path), CHANGE, __func__) ? -1 : REAL(name) values; \
  }
ON_PATH(AT_FDCWD, old, rename, (const char *old, const char *new), (old, new))
ON_PATH(from, old, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new))
ON_PATH(from, old, renameat2, (int from, const char *old, int to, const char *new, unsigned flags), (from, old, to, new, flags))
ON_PATH(AT_FDCWD, path, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(folder, path, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode))
ON_PATH(AT_FDCWD, path, rmdir, (const char *path), (path))
ON_PATH(AT_FDCWD, path, unlink, (const char *path), (path))
ON_PATH(folder, path, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
ON_PATH(AT_FDCWD, path, truncate, (const char *path, off_t size), (path, size))
ON_PATH(AT_FDCWD, new, symlink, (const char *old, const char *new), (old, new))
