/*
 * shard/base.h: status and error, element types, the random generator, version.
 *
 * Errors. A maker returns a pointer, and NULL with the error set. Most other functions that can fail return a shard_status.
 * Functions that return a number, a struct, a bool or nothing set the error, too; their comments have the value. A thread
 * keeps its first error until shard_clear_error(). A maker with a NULL operand returns NULL and keeps that error, so that a
 * whole step is written without checks and checked once. docs/errors.md has more.
 *
 * Collective. A function is collective where its comment says so: every rank of the group that it names makes the call, in the
 * same order. One thread of a process at a time makes such calls. Other functions need no other rank.
 *
 * NULL. The comment of a function says for which arguments NULL is allowed. For every other pointer NULL has this result:
 *   - a maker or a lookup returns NULL;
 *   - a function with a shard_status returns the thread's error, or ARGUMENT, with the argument's name, if there
 *     is none;
 *   - a function that returns a number or a struct returns 0, or the value that its comment has for errors;
 *   - a function that destroys or releases does nothing.
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

/* With SHARD_WARN_UNUSED_STATUS defined before the first header, compilers warn of a call whose status is not used, in C and
 * C++. Without it a program may also look at the kept error now and then (shard_last_status). */
#if defined(SHARD_WARN_UNUSED_STATUS) && defined(__GNUC__)
#define SHARD_CHECKED __attribute__((warn_unused_result))
#else
#define SHARD_CHECKED
#endif

/* The functions have the names and calls of C in C++ too. The macros that take options, or
 * arguments in any number, are for C alone. */
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
 * have where they are not 0, false or NULL; 0 in a field means 0:
 *
 *     shard_sgd_options options = SHARD_SGD_OPTIONS_INIT;
 *     options.lr = 0.1;
 *     shard_optimizer *sgd = shard_sgd_with(parameters, &options);
 *
 * A function reads the struct in the call alone. Errors: ARGUMENT, a size of 0, or a larger one than the library's with bytes
 * behind its fields that are not 0. docs/stability.md ("Options") says how programs run that were compiled with another header.
 *
 * In C the macro shard_x takes the fields by name behind the other arguments, in any order, and has the
 * defaults of those that are left out:
 *
 *     shard_optimizer *sgd = shard_sgd(parameters, .lr = 0.1);
 *
 * A first value without its field's name, as in shard_sgd(parameters, 0.1), does not compile; a later one is that of the field
 * behind the one before it, as in any initializer. In C++ such a macro does not compile.
 *
 * In standard C `...` may not be empty, so the last of the other arguments is in it, too. SHARD_OPTIONS makes that
 * argument and the struct of it; SHARD_GIVEN lets fields be set over the defaults without a warning. Inside of it gcc does not
 * warn of an unused status, which SHARD_GIVEN_STATUS therefore passes through a function. The assertion that the first option
 * has a name is in the struct whose size is taken: an initializer has no other place for one.
 */
#ifdef __cplusplus
#define SHARD_GIVEN(...) shard_this_macro_is_for_C_call_its_function_whose_name_ends_in_with_or_of
#else
#define SHARD_GIVEN(...)                                                                                     \
    __extension__({                                                                                          \
        _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Woverride-init\"") __VA_ARGS__;    \
        _Pragma("GCC diagnostic pop")                                                                        \
    })
#endif
#define SHARD_GIVEN_STATUS(...) shard_given_status(SHARD_GIVEN(__VA_ARGS__))
#define SHARD_FIELDS(type, defaults, ...) {defaults##_VALUES, .size = SHARD_SIZE_BY_NAME(type, __VA_ARGS__, ), __VA_ARGS__}
#define SHARD_SIZE_BY_NAME(type, first, ...)                                                                          \
    __extension__ sizeof(struct {                                                                                     \
        _Static_assert(sizeof #first == 1 || !__builtin_strncmp(#first, ".", 1), "options have names, as .lr = 0.1"); \
        type fields;                                                                                                  \
    })
#define SHARD_OPTIONS(type, defaults, ...) SHARD_OPTIONS_(type, defaults, __VA_ARGS__, )
#define SHARD_OPTIONS_(type, defaults, last, ...) last, &(type)SHARD_FIELDS(type, defaults, __VA_ARGS__)
#define SHARD_OPTIONS_BEFORE(type, defaults, ...) SHARD_OPTIONS_BEFORE_(type, defaults, __VA_ARGS__, )
#define SHARD_OPTIONS_BEFORE_(type, defaults, last, ...) &(type)SHARD_FIELDS(type, defaults, __VA_ARGS__), last

#define SHARD_VERSION_MAJOR 0
#define SHARD_VERSION_MINOR 2
#define SHARD_VERSION_PATCH 0

typedef enum shard_status {
    SHARD_OK = 0,
    SHARD_ERROR_ARGUMENT,    /* a value that the function does not accept */
    SHARD_ERROR_SHAPE,       /* shapes, dtypes or placements that do not fit together */
    SHARD_ERROR_MEMORY,      /* no memory left, or a size that overflows */
    SHARD_ERROR_UNSUPPORTED, /* legal, but no rule or kernel for it */
    SHARD_ERROR_UNAVAILABLE, /* a device or transport that is not available; the text says what to install */
    SHARD_ERROR_IO,          /* the operating system failed a read, write, open, ... */
    SHARD_ERROR_FORMAT,      /* a file whose content is malformed */
    SHARD_ERROR_MISMATCH,    /* ranks called different collectives, or with different arguments */
    SHARD_ERROR_PEER,        /* another rank failed; the text names it and its error */
    SHARD_ERROR_TIMEOUT,     /* ranks did not arrive before the deadline; the text names them */
    SHARD_ERROR_DEVICE,      /* the device's own library failed */
    SHARD_ERROR_INTERNAL,    /* a defect of this library */
} shard_status;

static inline SHARD_CHECKED shard_status shard_given_status(shard_status status)
{
    return status;
}

/* The name of a status: "ok", "argument", ...; static, never NULL. */
SHARD_API const char *shard_status_name(shard_status status);

/* This thread's first error since shard_clear_error; SHARD_OK if there is none. */
SHARD_API shard_status shard_last_status(void);

/* The text of that error, one line; "" if there is none. Valid until the thread's next call of the library. Control
 * characters are escaped. */
SHARD_API const char *shard_last_error(void);

/* Copies text to `to`, which has `bytes`, as one line for a log or a terminal: control characters, changes of the direction of
 * writing, invisible characters and bytes that are not UTF-8 become \n, \t, \r or \x1b. The text is cut before a character that
 * does not fit. Errors and log lines are escaped already; this is for programs that print names of files themselves. Returns
 * `to`; "" if `to` is NULL or has no bytes. */
SHARD_API const char *shard_printable(char *to, size_t bytes, const char *text);

/* Lines of the log. SHARD_LOG is the level up to which they are written: error, warn (the default), info or debug. */
typedef enum shard_log_level { SHARD_LOG_ERROR = 0, SHARD_LOG_WARN, SHARD_LOG_INFO, SHARD_LOG_DEBUG } shard_log_level;

/* Gets a line without "shard" and a newline; `rank` is -1 before shard_init. Any thread calls it, one at a time; it must
 * not call the library. */
typedef void shard_log_function(shard_log_level level, int rank, const char *line, void *context);

/* Sends the log's lines to `function`. With NULL, the default, they go to standard error. Not collective. */
SHARD_API void shard_set_log_function(shard_log_function *function, void *context);

/* Clears this thread's error. If all ranks have the error (docs/errors.md), all must clear it before the next
 * collective. */
SHARD_API void shard_clear_error(void);

/* Reports an error of the caller (a module, a loader) as the library reports its own: it is kept if it is the
 * thread's first, and the other ranks receive it at the next collective. Returns status, so that `return
 * shard_error(...)` works. */
SHARD_API shard_status shard_error(shard_status status, const char *format, ...) SHARD_PRINTF(2, 3);

/* "0.2.0"; static. */
SHARD_API const char *shard_version(void);

/* Element types, by PyTorch's names. */
typedef enum shard_dtype {
    SHARD_FLOAT32 = 0, /* the default of all options */
    SHARD_FLOAT64,
    SHARD_BFLOAT16,
    SHARD_FLOAT16,
    SHARD_INT64,
    SHARD_INT32,
    SHARD_UINT8,
} shard_dtype;
#define SHARD_DTYPES 7

/* Bytes of one element: 8, 4, 2 or 1; 0 for a value that is not a dtype. */
SHARD_API size_t shard_dtype_size(shard_dtype dtype);

/* "float32", ...; static; "invalid" for a value that is not a dtype. */
SHARD_API const char *shard_dtype_name(shard_dtype dtype);

/* Whether the dtype is one of the four floating types. */
SHARD_API bool shard_dtype_is_float(shard_dtype dtype);

/*
 * The random generator is counter-based (Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as
 * easy as 1, 2, 3", SC 2011). A value depends on the seed, the draw and the element's index in the whole tensor.
 * Values of split tensors do not depend on the number of ranks; dropout of local ones that are parts of a batch needs its
 * option .group for it (shard/op.h). Each initialized tensor and each dropout takes the next draw. The state is this
 * thread's. All ranks of a job run the same program, so they draw the same numbers. A rank that fails may leave draws
 * out: once an error that all ranks have is cleared, each goes on where the rank was that had taken most (docs/errors.md).
 */
typedef struct shard_random_state {
    int64_t seed; /* the bits of an uint64_t, so that both fields are integers of metadata (shard/checkpoint.h) */
    int64_t next_draw;
} shard_random_state;

/* Sets the seed and restarts at draw 0, as torch.manual_seed. The initial seed is 0. */
SHARD_API void shard_manual_seed(uint64_t seed);
SHARD_API shard_random_state shard_get_random_state(void);
SHARD_API void shard_set_random_state(shard_random_state state);

SHARD_END_C

#endif
