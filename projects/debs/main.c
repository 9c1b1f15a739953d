/* Trains a classifier with very many labels; see README.md, or --help. */
#include "program.h"
#include "trainer.h"

static shard_status run_it(void *values)
{
    const options *wanted = values;
    trainer run = {0};
    shard_status status = training_open_device(&wanted->training);
    if (status == SHARD_OK)
        status = trainer_open(&run, wanted);
    if (status == SHARD_OK && wanted->training.evaluate) {
        measures whole;
        bool interrupted;
        status = evaluate(&run, &whole, &interrupted);
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
    options wanted;
    return program_main(&(program){&options_line, &wanted, options_check, run_it, true}, argc, argv);
}
