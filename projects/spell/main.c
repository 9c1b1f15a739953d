/* Corrects misspelled words by a classifier of all words of a dictionary; see README.md, or --help. */
#include "interrupt.h"
#include "trainer.h"

static shard_status run_it(const options *wanted)
{
    trainer run = {0};
    shard_device *device = wanted->training.device ? shard_device_open(wanted->training.device) : NULL;
    shard_set_default_device(device);
    shard_status status = shard_last_status() == SHARD_OK ? trainer_open(&run, wanted) : shard_agree(shard_world());
    if (status == SHARD_OK && wanted->evaluate) {
        accuracy whole;
        bool interrupted;
        status = evaluate(&run, &whole, &interrupted);
    } else if (status == SHARD_OK && wanted->correct) {
        status = correct(&run, stdin, stdout);
    } else if (status == SHARD_OK) {
        status = train(&run);
    }
    if (status == SHARD_OK && wanted->training.memory_report)
        status = metrics_print_memory();
    trainer_close(&run);
    return status;
}

int main(int argc, char **argv)
{
    if (shard_init(&argc, &argv) == SHARD_OK) {
        options wanted;
        interrupt_watch();
        bool agreed = options_parse(&wanted, argc, argv) == SHARD_OK && options_agree(&wanted) == SHARD_OK;
        if (agreed && !wanted.help)
            run_it(&wanted);
        else if (agreed && shard_group_rank(shard_world()) == 0)
            options_print_help(stdout);
        shard_agree(shard_world()); /* an error of one rank or of all is printed once */
    }
    int code = shard_finalize();
    return code == 0 && interrupt_signal() ? 128 + interrupt_signal() : code;
}
