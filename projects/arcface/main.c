/* Trains a network whose features tell identities apart; see README.md, or --help. */
#include "program.h"
#include "trainer.h"

static shard_status run_it(void *values)
{
    const options *wanted = values;
    trainer run = {0};
    double accuracy;
    bool interrupted;
    shard_status status = training_open_device(&wanted->training);
    if (status == SHARD_OK)
        status = trainer_open(&run, wanted);
    if (status == SHARD_OK)
        status = wanted->training.evaluate ? evaluate(&run, &accuracy, &interrupted) : train(&run);
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
