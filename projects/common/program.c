#include "program.h"

#include "interrupt.h"

#include <shard/distributed.h>

#include <errno.h>
#include <signal.h>
#include <string.h>

/* Lines that standard output did not take may be a validation's only result. A terminal that has ended takes none. */
static void check_output(void)
{
    if (interrupt_signal())
        return;
    bool failed = fflush(stdout) != 0;
    const char *reason = failed ? strerror(errno) : "an earlier write failed";
    if (shard_last_status() == SHARD_OK && (failed || ferror(stdout)))
        shard_error(SHARD_ERROR_IO, "standard output: %s", reason);
}

static shard_status start(const program *of, int argc, char **argv)
{
    bool help;
    shard_status status = command_line_read(of->line, of->values, argc, argv, &help);
    if (status == SHARD_OK && !help && of->check)
        status = of->check(of->values);
    if (status == SHARD_OK)
        status = command_line_check_identical(of->line, of->values);
    if (status != SHARD_OK)
        return status;
    if (!help)
        return of->run(of->values);
    if (shard_group_rank(shard_world()) == 0)
        return command_line_print_help(of->line, stdout);
    return SHARD_OK;
}

int program_main(const program *of, int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* beyond ulimit -f, writes shall fail with an error, not end the program */
    if (shard_init(&argc, &argv) == SHARD_OK) {
        if (of->watches)
            interrupt_watch();
        start(of, argc, argv);
        check_output();
        shard_agree(shard_world()); /* an error of one rank or of all is printed once */
    }
    int code = shard_finalize();
    return code == 0 && interrupt_signal() ? 128 + interrupt_signal() : code;
}
