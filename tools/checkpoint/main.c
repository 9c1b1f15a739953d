/* shard-checkpoint: shows, compares and rewrites safetensors files. */
#include "commands.h"
#include "source.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shard_status run(const char *command, settings *s, bool *differs)
{
    static const struct {
        const char *name;
        shard_status (*run)(settings *s);
    } commands[] = {{"inspect", command_inspect},
                    {"merge", command_merge},
                    {"split", command_split},
                    {"convert", command_convert},
                    {"join", command_join}};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(commands[i].name, command) == 0)
            return commands[i].run(s);
    return strcmp(command, "diff") == 0 ? command_diff(s, differs) : command_verify(s, differs);
}

static int exit_code(shard_status status, bool differs)
{
    if (status != SHARD_OK) /* also after a difference: what follows was not compared */
        return status == SHARD_ERROR_FORMAT ? EXIT_DIFFERS : EXIT_OTHER;
    return differs ? EXIT_DIFFERS : EXIT_SUCCESS;
}

int main(int count, char **arguments)
{
    settings s;
    bool differs = false;
    if (count < 2 || strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0) {
        if (count >= 2)
            settings_print_help();
        fputs(settings_help, stderr);
        return EXIT_USAGE;
    }
    settings_read(&s, arguments[1], count - 1, arguments + 1);
    if (s.output)
        signals_take();
    shard_status status = run(arguments[1], &s, &differs);
    if (shard_last_status() != SHARD_OK) {
        fflush(stdout);
        fprintf(stderr, "shard-checkpoint: %s\n", shard_last_error());
    }
    settings_free(&s);
    if (signal_taken()) /* the handler was reset */
        raise(signal_taken());
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("shard-checkpoint: cannot write the output");
        return EXIT_OTHER;
    }
    return exit_code(status, differs);
}
