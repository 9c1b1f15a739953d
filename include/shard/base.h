/*
 * shard/base.h: what everything else stands on: status and error, element
 * types, the random generator, version.
 *
 * The error. Makers return a pointer, doers return a shard_status. The first
 * error of a thread is kept until shard_clear_error(): a maker that is handed
 * NULL returns NULL and leaves that first error alone, so that a whole step is
 * written straight down and checked once.
 *
 * NULL. A function whose comment allows NULL for an argument says what it stands for there. For
 * every other argument that is a pointer:
 *   a maker returns NULL, and so does what looks something up;
 *   a doer returns the thread's error; if there was none, ARGUMENT, with the argument's name;
 *   what returns a number or a struct returns 0, or what its comment says of errors;
 *   what destroys or releases does nothing.
 */
#ifndef SHARD_BASE_H
#define SHARD_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SHARD_API __attribute__((visibility("default")))
#define SHARD_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define SHARD_API
#define SHARD_PRINTF(text, first)
#endif

/* The functions have the names and calls of C in C++ too. The macros that take options are for C alone. */
#ifdef __cplusplus
#define SHARD_BEGIN_C extern "C" {
#define SHARD_END_C }
#else
#define SHARD_BEGIN_C
#define SHARD_END_C
#endif

SHARD_BEGIN_C

/*
 * Options. A function shard_x_with takes a pointer to a struct shard_x_options, or NULL for the defaults.
 * The struct's first member is its size. SHARD_X_OPTIONS_INIT sets it and the defaults, which the comments of the fields
 * end with where they are not 0; 0 in a field means 0:
 *
 *     shard_sgd_options options = SHARD_SGD_OPTIONS_INIT;
 *     options.lr = 0.1;
 *     shard_optimizer *sgd = shard_sgd_with(parameters, &options);
 *
 * A function reads `size` bytes and takes the defaults for the fields behind them, so that a program that was
 * compiled with an older header still runs. It reads the struct in the call alone. Errors: ARGUMENT, a size of 0, or a
 * larger one than the library's with bytes behind its fields that are not 0.
 *
 * In C the macro shard_x takes the fields by name behind the other arguments, in any order, and has the
 * defaults of those that are left out:
 *
 *     shard_optimizer *sgd = shard_sgd(parameters, .lr = 0.1);
 *
 * In standard C `...` may not be empty, so the last of the other arguments is in it, too. SHARD_OPTIONS makes that
 * argument and the struct of it; SHARD_GIVEN lets fields be set over the defaults without a warning.
 */
#define SHARD_GIVEN(...)                                                                                     \
    __extension__({                                                                                          \
        _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Woverride-init\"") __VA_ARGS__;    \
        _Pragma("GCC diagnostic pop")                                                                        \
    })
#define SHARD_OPTIONS(type, defaults, ...) SHARD_OPTIONS_(type, defaults, __VA_ARGS__, )
#define SHARD_OPTIONS_(type, defaults, last, ...) last, &(type){defaults##_VALUES, __VA_ARGS__}
#define SHARD_OPTIONS_BEFORE(type, defaults, ...) SHARD_OPTIONS_BEFORE_(type, defaults, __VA_ARGS__, )
#define SHARD_OPTIONS_BEFORE_(type, defaults, last, ...) &(type){defaults##_VALUES, __VA_ARGS__}, last

#define SHARD_VERSION_MAJOR 0
#define SHARD_VERSION_MINOR 1
#define SHARD_VERSION_PATCH 0

typedef enum shard_status {
    SHARD_OK = 0,
    SHARD_ERROR_ARGUMENT,    /* a value that the function does not take */
    SHARD_ERROR_SHAPE,       /* shapes, dtypes or placements that do not fit together */
    SHARD_ERROR_MEMORY,      /* no memory left, or a size that overflows */
    SHARD_ERROR_UNSUPPORTED, /* legal, but no rule or kernel for it */
    SHARD_ERROR_UNAVAILABLE, /* a device or transport that is not here; the text says what to install */
    SHARD_ERROR_IO,          /* the operating system failed a read, write, open, ... */
    SHARD_ERROR_FORMAT,      /* a file whose content is malformed */
    SHARD_ERROR_MISMATCH,    /* ranks called different collectives, or with different arguments */
    SHARD_ERROR_PEER,        /* another rank failed; the text names it and its error */
    SHARD_ERROR_TIMEOUT,     /* ranks did not come before the deadline; the text names them */
    SHARD_ERROR_DEVICE,      /* the device's own library failed */
    SHARD_ERROR_INTERNAL,    /* a defect of this library */
} shard_status;

/* The word for a status, "ok", "argument", ...; static, never NULL. */
SHARD_API const char *shard_status_name(shard_status status);

/* This thread's first error since it was last cleared; SHARD_OK if none. */
SHARD_API shard_status shard_last_status(void);

/* Its text, one line; "" if there is none. Valid until the next call of the
 * library in this thread. Control characters in it are escaped. */
SHARD_API const char *shard_last_error(void);

/* Copies text to `to`, which has `bytes`, for one line of a log or a terminal: control characters and
 * bytes that are no UTF-8 become \n, \t, \r or \x1b. Cut before a character that does not fit. Errors and
 * log lines have been through it; for a program that prints names of files itself. Returns `to`; "" where
 * `to` is NULL or has no bytes. */
SHARD_API const char *shard_printable(char *to, size_t bytes, const char *text);

/* Lines of the log. SHARD_LOG says from which level on they are written: error, warn (if it is not set), info or debug. */
typedef enum shard_log_level { SHARD_LOG_ERROR = 0, SHARD_LOG_WARN, SHARD_LOG_INFO, SHARD_LOG_DEBUG } shard_log_level;

/* Gets a line, without "shard" and a newline; `rank` is -1 before shard_init. Called by any thread, one at a time; it must
 * not call the library. */
typedef void shard_log_function(shard_log_level level, int rank, const char *line, void *context);

/* Has `function` get the log's lines; NULL: they go to standard error again, as at first. Not collective. */
SHARD_API void shard_set_log_function(shard_log_function *function, void *context);

/* Forgets this thread's error. One that all ranks have (op.h) is to be forgotten by all of them,
 * before the next collective. */
SHARD_API void shard_clear_error(void);

/* Reports a caller's own error (a module, a loader) as the library reports
 * its own: kept if it is the first, told to the other ranks at the next
 * collective. Returns status, so that `return shard_error(...)` works. */
SHARD_API shard_status shard_error(shard_status status, const char *format, ...) SHARD_PRINTF(2, 3);

/* "0.1.0"; static. */
SHARD_API const char *shard_version(void);

/* Element types. Names are PyTorch's. */
typedef enum shard_dtype {
    SHARD_FLOAT32 = 0, /* the default everywhere */
    SHARD_FLOAT64,
    SHARD_BFLOAT16,
    SHARD_FLOAT16,
    SHARD_INT64,
    SHARD_INT32,
    SHARD_UINT8,
} shard_dtype;
#define SHARD_DTYPES 7

/* Bytes of one element: 8, 4, 2 or 1; 0 for a value that is no dtype. */
SHARD_API size_t shard_dtype_size(shard_dtype dtype);

/* "float32", ...; static; "invalid" for a value that is no dtype. */
SHARD_API const char *shard_dtype_name(shard_dtype dtype);

/* Whether it is one of the four floating types. */
SHARD_API bool shard_dtype_is_float(shard_dtype dtype);

/*
 * The random generator. Counter-based (Philox4x32-10: Salmon, Moraes, Dror,
 * Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a value
 * depends on the seed, on the draw (each tensor initialised and each dropout
 * takes the next one) and on the element's index in the whole tensor, never on
 * the number of ranks. The state is this thread's; as all ranks of a job run
 * the same program, they draw the same.
 */
typedef struct shard_random_state {
    int64_t seed; /* of one above INT64_MAX the same bits, so that both are metadata's integers (shard/checkpoint.h) */
    int64_t next_draw;
} shard_random_state;

/* Starts draw 0 of the seed, as torch.manual_seed. Without it the seed is 0. */
SHARD_API void shard_manual_seed(uint64_t seed);
SHARD_API shard_random_state shard_get_random_state(void);
SHARD_API void shard_set_random_state(shard_random_state state);

SHARD_END_C

#endif
