/* shard-search: the nearest rows of a checkpoint's tensor; see --help. */
#include "search.h"

#include "../checkpoint/source.h"

#include "base/plugin.h"

#include <shard/shard.h>

#include <signal.h>
#include <string.h>

static void run(int argc, char **argv)
{
    settings o;
    bool exports = argc > 1 && strcmp(argv[1], "export") == 0;
    if (options_read(&o, exports, argc - exports, argv + exports) != SHARD_OK || options_check_identical(&o, exports) != SHARD_OK)
        return;
    if (o.help && shard_group_rank(shard_world()) == 0)
        options_print_help();
    else if (!o.help && exports)
        command_export(&o);
    else if (!o.help)
        command_search(&o);
}

int main(int argc, char **argv)
{
    shard_plugin_add_folder(PLUGIN_FOLDER);
    if (shard_init(&argc, &argv) == SHARD_OK) {
        run(argc, argv);
        shard_agree(shard_world()); /* an error of one rank or of all is printed once */
    }
    int code = shard_finalize();
    if (signal_taken()) /* the handler was reset */
        raise(signal_taken());
    return code;
}
