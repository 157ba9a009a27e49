/* A library of custom operators for ONNX Runtime: domain "native".
 *
 * Twice doubles floats. Do executes a command (UINT8) and returns errno; 0: it succeeded. The
 * library's constructor tries what it can before anybody calls it.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Places of functions in ONNX Runtime's table OrtApi, which never change. */
enum {
    CREATE_STATUS = 0, CREATE_DOMAIN = 26, DOMAIN_ADD = 27, ADD_DOMAIN = 28, GET_DATA = 51,
    GET_DIMENSIONS_COUNT = 61, GET_DIMENSIONS = 62, GET_ELEMENT_COUNT = 64, GET_SHAPE = 65,
    GET_INPUT = 90, GET_OUTPUT = 91, RELEASE_SHAPE = 99,
};
enum { FLOAT = 1, UINT8 = 2, INT64 = 7 };
#define MAX_RANK 8
#define API_VERSION 11

typedef void *Status;
typedef struct { const void *const *(*get_api)(uint32_t); } ApiBase;
typedef struct Op {
    uint32_t version;
    void *(*create)(const struct Op *, const void *api, const void *info);
    const char *(*name)(const struct Op *);
    const char *(*provider)(const struct Op *);
    int (*input_type)(const struct Op *, size_t);
    size_t (*input_count)(const struct Op *);
    int (*output_type)(const struct Op *, size_t);
    size_t (*output_count)(const struct Op *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*input_is_optional)(const struct Op *, size_t);
    int (*output_is_optional)(const struct Op *, size_t);
} Op;

static const void *const *api;
static int of_constructor;

#define CALL(place, ...) (((Status(*)())api[place])(__VA_ARGS__))

static int outcome(long result) { return result < 0 ? errno : 0; }

static int open_parent(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", getppid(), name);
    return outcome(open(path, O_RDONLY));
}

__attribute__((constructor)) static void try_at_once(void) {
#ifdef ABORT
    abort();
#endif
    int of_environ = open_parent("environ");
    of_constructor = of_environ ? of_environ : outcome(socket(AF_UNIX, SOCK_STREAM, 0));
}

static int connect_to(const char *host, int port) {
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (descriptor < 0) return errno;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    int result = outcome(connect(descriptor, (struct sockaddr *)&address, sizeof address));
    close(descriptor);
    return result;
}

static int has_descriptor(const char *part) {
    DIR *directory = opendir("/proc/self/fd");
    if (directory == NULL) return errno;
    int result = ENOENT;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char target[4096] = "";
        if (readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1) > 0
            && strstr(target, part) != NULL)
            result = 0;
    }
    closedir(directory);
    return result;
}

static int fill(long bytes) {
    char *memory = malloc(bytes);
    if (memory == NULL) return errno;
    memset(memory, 1, bytes);
    free(memory);
    return 0;
}

static int execute(char *command) {
    char text[4096] = "";
    long number = 0, a = 0, b = 0, c = 0;
    struct rlimit none = {0, 0};
    if (sscanf(command, "read %4095s", text) == 1) return outcome(open(text, O_RDONLY));
    if (sscanf(command, "append %4095s", text) == 1) return outcome(open(text, O_WRONLY | O_APPEND));
    if (sscanf(command, "chmod %4095s", text) == 1) return outcome(chmod(text, 0));
    if (sscanf(command, "parent %4095s", text) == 1) return open_parent(text);
    if (sscanf(command, "variable %4095s", text) == 1) return getenv(text) ? 0 : ENOENT;
    if (sscanf(command, "descriptor %4095s", text) == 1) return has_descriptor(text);
    if (sscanf(command, "connect %4095s %ld", text, &number) == 2) return connect_to(text, number);
    if (sscanf(command, "fill %ld", &number) == 1) return fill(number);
    if (sscanf(command, "call %ld %ld %ld %ld", &number, &a, &b, &c) == 4)
        return outcome(syscall(number, a == -7 ? getppid() : a, b, c, 0, 0, 0));
    if (!strcmp(command, "netlink")) return outcome(socket(AF_NETLINK, SOCK_RAW, 0));
    if (!strcmp(command, "signal")) return outcome(kill(getppid(), 0));
    if (!strcmp(command, "limit")) return outcome(prlimit(getppid(), RLIMIT_CORE, &none, NULL));
    if (!strcmp(command, "constructor")) return of_constructor;
    if (!strcmp(command, "segfault")) raise(SIGSEGV);
    if (!strcmp(command, "exit")) _exit(7);
    if (!strncmp(command, "print ", 6)) return outcome(write(2, command + 6, strlen(command) - 6));
    if (!strcmp(command, "garble"))
        for (int descriptor = 3; descriptor < 4096; descriptor++)
            if (send(descriptor, "\377\377\377\377\377\377\377\377", 8, MSG_NOSIGNAL) == 8) return 0;
    return ENOSYS;
}

static void *input(void *context) {
    void *value = NULL;
    CALL(GET_INPUT, context, (size_t)0, &value);
    return value;
}

static void *data_of(void *value) {
    void *data = NULL;
    CALL(GET_DATA, value, &data);
    return data;
}

static void compute_twice(void *kernel, void *context) {
    void *value = input(context), *shape = NULL, *result = NULL;
    int64_t dims[MAX_RANK];
    size_t rank = 0, count = 0;
    CALL(GET_SHAPE, value, &shape);
    CALL(GET_DIMENSIONS_COUNT, shape, &rank);
    CALL(GET_DIMENSIONS, shape, dims, rank);
    CALL(GET_ELEMENT_COUNT, shape, &count);
    ((void (*)(void *))api[RELEASE_SHAPE])(shape);
    CALL(GET_OUTPUT, context, (size_t)0, dims, rank, &result);
    const float *from = data_of(value);
    float *to = data_of(result);
    for (size_t index = 0; index < count; index++) to[index] = 2 * from[index];
}

static void compute_do(void *kernel, void *context) {
    void *value = input(context), *shape = NULL, *result = NULL;
    size_t count = 0;
    int64_t one = 1;
    CALL(GET_SHAPE, value, &shape);
    CALL(GET_ELEMENT_COUNT, shape, &count);
    ((void (*)(void *))api[RELEASE_SHAPE])(shape);
    char *command = strndup(data_of(value), count);
    CALL(GET_OUTPUT, context, (size_t)0, &one, (size_t)1, &result);
    *(int64_t *)data_of(result) = execute(command);
    free(command);
}

static void *create(const Op *op, const void *table, const void *info) { return (void *)op; }
static void destroy(void *kernel) {}
static const char *provider(const Op *op) { return NULL; }
static size_t one(const Op *op) { return 1; }
static int required(const Op *op, size_t index) { return 0; }
static int type_float(const Op *op, size_t index) { return FLOAT; }
static int type_uint8(const Op *op, size_t index) { return UINT8; }
static int type_int64(const Op *op, size_t index) { return INT64; }
static const char *name_twice(const Op *op) { return "Twice"; }
static const char *name_do(const Op *op) { return "Do"; }

static const Op twice = {API_VERSION, create, name_twice, provider, type_float, one, type_float,
                         one, compute_twice, destroy, required, required};
static const Op do_command = {API_VERSION, create, name_do, provider, type_uint8, one, type_int64,
                              one, compute_do, destroy, required, required};

Status RegisterCustomOps(void *options, const ApiBase *base) {
    void *domain = NULL;
    api = base->get_api(API_VERSION);
    Status status = CALL(CREATE_DOMAIN, "native", &domain);
    if (status == NULL) status = CALL(DOMAIN_ADD, domain, &twice);
    if (status == NULL) status = CALL(DOMAIN_ADD, domain, &do_command);
    return status == NULL ? CALL(ADD_DOMAIN, options, domain) : status;
}
