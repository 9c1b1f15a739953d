/* projects/imagenet and the files that it is given: --pretrained's names and metadata, and words that are no file. */
#include "support/pictures.h"
#include "support/ranks.h"
#include "support/trainer.h"

#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_RUN                                                                                                                \
    "-a resnet18 --stem small --width 8 --image-size 8 --synthetic 34 --num-classes 11 -b 6 --lr 1e-3 -j 1 --seed 7 "

static void make_trained(void)
{
    make_run_folder();
    if (run("", FILES_RUN "--epochs 1 --output trained --metrics trained.json") != 0)
        fprintf(stderr, "the run failed: %s\n", text_of("log"));
}

/* ---- --pretrained ---- */

/* The model's tensors of a checkpoint under other names, as a file without metadata: NULL leaves one out. */
static void write_state_of(const char *source, const char *name, const char *(*rename)(const char *))
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", run_folder, source);
    SHARD_SCOPE {
        shard_tensors *file = shard_inspect(path, NULL), *read = shard_tensors_create(), *written = shard_tensors_create();
        for (int64_t i = 0; i < shard_tensors_count(file); i++)
            if (strncmp(shard_tensors_name(file, i), "optimizer.", 10) != 0)
                check_ok(shard_tensors_add(read, shard_tensors_name(file, i), shard_tensors_at(file, i)));
        check_ok(shard_load(read, path, .allow_unexpected = true));
        for (int64_t i = 0; i < shard_tensors_count(read); i++) {
            const char *renamed = rename(shard_tensors_name(read, i));
            if (renamed)
                check_ok(shard_tensors_add(written, renamed, shard_tensors_at(read, i)));
        }
        snprintf(path, sizeof path, "%s/%s", run_folder, name);
        check_ok(shard_save(written, path, NULL));
        shard_tensors_destroy(file);
        shard_tensors_destroy(read);
        shard_tensors_destroy(written);
    }
}

static void write_state(const char *name, const char *(*rename)(const char *))
{
    write_state_of("trained/best.safetensors", name, rename);
}

static const char *as_it_is(const char *name)
{
    return name;
}

static const char *without_counts(const char *name)
{
    return strstr(name, "num_batches_tracked") ? NULL : name;
}

static const char *in_data_parallel(const char *name)
{
    static char wrapped[2][100];
    static int turn;
    turn = !turn;
    snprintf(wrapped[turn], sizeof wrapped[turn], "module.%s", name);
    return wrapped[turn];
}

static const char *without_final(const char *name)
{
    return strncmp(name, "fc.", 3) == 0 ? NULL : name;
}

static const char *with_a_head(const char *name)
{
    return strcmp(name, "fc.weight") == 0 ? "head.weight" : strcmp(name, "fc.bias") == 0 ? "head.bias" : name;
}

/* Two tensors behind the name of a third block, as resnet34 has and resnet18 has not. */
static const char *of_resnet34(const char *name)
{
    return strcmp(name, "layer1.1.conv1.weight") == 0   ? "layer1.2.conv1.weight"
           : strcmp(name, "layer1.1.conv2.weight") == 0 ? "layer1.2.conv2.weight"
                                                        : name;
}

static void check_evaluates_as_trained(const char *options)
{
    line a[MOST_LINES], b[MOST_LINES];
    int count = read_metrics("trained.json", a);
    drop_file("given.json");
    check_runs("", FILES_RUN "-e %s --metrics given.json", options);
    ck_assert_int_eq(read_metrics("given.json", b), 1);
    ck_assert_str_eq(a[count - 1].loss_text, b[0].loss_text);
}

START_TEST(test_pretrained)
{
    write_state("plain.safetensors", as_it_is);
    write_state("old.safetensors", without_counts);
    check_evaluates_as_trained("--resume trained/best.safetensors");
    check_evaluates_as_trained("--pretrained trained/best.safetensors");
    check_evaluates_as_trained("--pretrained trained/model.safetensors");
    check_evaluates_as_trained("--pretrained plain.safetensors");
    check_evaluates_as_trained("--pretrained old.safetensors");
    write_state("wrapped.safetensors", in_data_parallel);
    check_evaluates_as_trained("--pretrained wrapped.safetensors");
    check_refused("--evaluate needs a model", FILES_RUN "-e");
}
END_TEST

START_TEST(test_pretrained_of_another_architecture)
{
    check_refused("its arch is resnet18, not resnet34", FILES_RUN "-a resnet34 --pretrained trained/best.safetensors");
    check_refused_on(2, "its stem is small, not imagenet", FILES_RUN "--stem imagenet --pretrained trained/best.safetensors");
    write_state("other.safetensors", of_resnet34);
    const char *told = "2 missing (layer1.1.conv1.weight, layer1.1.conv2.weight), 2 unexpected (layer1.2.conv1.weight, "
                       "layer1.2.conv2.weight)";
    check_refused(told, FILES_RUN "--pretrained other.safetensors");
    check_refused(told, FILES_RUN "-e --pretrained other.safetensors");
    write_state("plain.safetensors", as_it_is);
    check_refused("missing (layer1.2.conv1.weight, ", FILES_RUN "-a resnet34 --pretrained plain.safetensors");
}
END_TEST

START_TEST(test_pretrained_without_final_layer)
{
    write_state("backbone.safetensors", without_final);
    write_state("head.safetensors", with_a_head);
    check_refused("2 missing (fc.weight, fc.bias)", FILES_RUN "--pretrained backbone.safetensors");
    check_refused("2 missing (fc.weight, fc.bias)", FILES_RUN "-e --pretrained backbone.safetensors");
    check_refused("2 unexpected (head.weight, head.bias)", FILES_RUN "-e --pretrained head.safetensors");
    check_refused("2 unexpected (head.weight, head.bias)", FILES_RUN "--pretrained head.safetensors --pretrained-skip fc --steps 1");
    check_refused("--pretrained-skip leaves out fc.weight, fc.bias",
                  FILES_RUN "-e --pretrained backbone.safetensors --pretrained-skip fc");
    check_refused("has \"fd\"", FILES_RUN "--pretrained backbone.safetensors --pretrained-skip fc,fd");
    check_refused("needs --pretrained", FILES_RUN "--pretrained-skip fc");
    drop_log();
    check_runs("", FILES_RUN "--pretrained backbone.safetensors --pretrained-skip fc --steps 1");
    ck_assert_ptr_nonnull(strstr(text_of("log"), "with new initial values: fc.weight, fc.bias"));
    check_runs(shardrun(2), FILES_RUN "--enable-model-parallel --pretrained head.safetensors --pretrained-skip fc,head --steps 1");
}
END_TEST

START_TEST(test_pretrained_of_other_classes)
{
    check_refused("has 11 classes, not 7; to train a new last layer, add --pretrained-skip fc",
                  FILES_RUN "--num-classes 7 --pretrained trained/best.safetensors --steps 1");
    check_runs("", FILES_RUN "--num-classes 7 --pretrained trained/best.safetensors --pretrained-skip fc --steps 1");
    /* Names of files may have anything in them; a message is one line. */
    char link[200];
    snprintf(link, sizeof link, "ln -s best.safetensors \"$(printf '%s/trained/x\\ny')\"", run_folder);
    ck_assert_int_eq(run_command(link), 0);
    check_refused("trained/x\\ny: its last layer has 11 classes", FILES_RUN "--num-classes 7 --pretrained \"$(printf 'trained/x\\ny')\" --steps 1");
}
END_TEST

#define ADAFACE_RUN FILES_RUN "--val-interval 0 --margin adaface:0.4,0.333 "
#define ANEW "with new initial values: fc.batch_mean, fc.batch_std"

static const char *without_mean(const char *name)
{
    return strcmp(name, "fc.batch_mean") == 0 ? NULL : name;
}

static const char *without_std(const char *name)
{
    return strcmp(name, "fc.batch_std") == 0 ? NULL : name;
}

/* AdaFace's mean of the norms in a file of the folder; -1: it has none. */
static double mean_of(const char *name)
{
    double value = -1;
    char path[128];
    snprintf(path, sizeof path, "%s/%s", run_folder, name);
    SHARD_SCOPE {
        shard_tensors *file = shard_inspect(path, NULL), *one = shard_tensors_create();
        shard_tensor *mean = shard_tensors_find(file, "fc.batch_mean");
        if (mean) {
            check_ok(shard_tensors_add(one, "fc.batch_mean", mean));
            check_ok(shard_load(one, path, .allow_unexpected = true));
            value = shard_item(mean);
        }
        shard_tensors_destroy(file);
        shard_tensors_destroy(one);
    }
    return value;
}

/* AdaFace's statistics: of the file where the model has them, too, else new ones or none; of one of the two none. */
START_TEST(test_pretrained_statistics)
{
    check_runs("", ADAFACE_RUN "--steps 3 --output faces");
    double first = 20, mean = mean_of("faces/model.safetensors");
    ck_assert(mean > 0 && mean != first);

    drop_log();
    check_runs("", ADAFACE_RUN "--pretrained faces/model.safetensors --steps 1 --output both");
    ck_assert_ptr_null(strstr(text_of("log"), "new initial values"));
    ck_assert_double_gt((mean_of("both/model.safetensors") - mean) / (mean - first), 0); /* from the file's on */

    drop_log();
    check_runs("", ADAFACE_RUN "--pretrained trained/model.safetensors --pretrained-skip fc.bias --steps 1 --output model");
    ck_assert_ptr_nonnull(strstr(text_of("log"), ANEW));
    ck_assert_double_lt(fabs(mean_of("model/model.safetensors") - first), fabs(mean - first)); /* from the first on */

    drop_log();
    check_runs("", FILES_RUN "--val-interval 0 --margin arcface:0.5 --pretrained faces/model.safetensors --steps 1 --output file");
    ck_assert_ptr_null(strstr(text_of("log"), "new initial values"));
    ck_assert_double_eq(mean_of("file/model.safetensors"), -1);

    write_state_of("faces/model.safetensors", "mean.safetensors", without_std);
    write_state_of("faces/model.safetensors", "std.safetensors", without_mean);
    check_refused("has fc.batch_mean without fc.batch_std", ADAFACE_RUN "--pretrained mean.safetensors --steps 1");
    check_refused_on(2, "has fc.batch_std without fc.batch_mean", ADAFACE_RUN "--pretrained std.safetensors --steps 1");
    check_refused("--pretrained-skip fc.batch_mean,fc.batch_std", ADAFACE_RUN "-e --pretrained std.safetensors");
    drop_log();
    check_runs("", ADAFACE_RUN "--pretrained mean.safetensors --pretrained-skip fc.batch_mean,fc.batch_std --steps 1");
    ck_assert_ptr_nonnull(strstr(text_of("log"), ANEW));
    check_runs("", FILES_RUN "--margin arcface:0.5 --pretrained mean.safetensors --steps 1");
}
END_TEST

/* An option that takes the next word takes it where another option or DIR is meant. */
START_TEST(test_words_that_are_no_files)
{
    check_refused("--pretrained needs a FILE, and \"trained\" is a folder", "-a resnet18 --pretrained trained");
    check_refused("--resume needs a FILE, and \"trained\" is a folder", "-a resnet18 --resume trained");
    check_refused("--pretrained needs a FILE, and \"-e\" is an option", "--pretrained -e trained");
    check_refused("--output needs a DIR, and its value is empty", "--output '' trained");
    check_refused("the DIR is empty", "-a resnet18 ''");
    check_refused("\"nothing\" is --pretrained's FILE", "-a resnet18 --pretrained nothing");
    check_refused("nothing", FILES_RUN "--pretrained nothing");
}
END_TEST

/* ---- PyTorch's command line ---- */

static void check_notes(int ranks, const char *options, const char *const *notes)
{
    drop_log();
    check_runs(shardrun(ranks), "%s", options);
    for (; *notes; notes++) {
        const char *log = text_of("log"), *told = strstr(log, *notes);
        ck_assert_msg(told && !strstr(told + 1, *notes), "not one line with \"%s\": %s", *notes, log);
    }
}

/* The options of pytorch/examples' imagenet/main.py and of TorchShard's, but for --pretrained, which needs a file. */
START_TEST(test_options_of_pytorch)
{
    check_notes(2,
                FILES_RUN "--workers 1 --epochs 1 --batch-size 6 --learning-rate 1e-3 --momentum 0.9 --weight-decay 1e-4 "
                          "--print-freq 1 --start-epoch 0 --world-size 2 --rank 0 --dist-url tcp://127.0.0.1:8000 --dist-backend "
                          "nccl --multiprocessing-distributed --multiprocessing-distributed --no-accel --seed 7 "
                          "--enable-model-parallel --model-parallel-dim -1 --enable-amp-mode --enable-zero-optim",
                (const char *const[]){"--world-size: ", "--rank: ", "--dist-url: ", "--dist-backend: ",
                                      "--multiprocessing-distributed: start a rank for each GPU: shardrun -n N", "--no-accel: write --device cpu",
                                      "--start-epoch: ", NULL});
    check_notes(1,
                "-a resnet18 --stem small --width 8 --image-size 8 -b 6 -j 1 --lr 1e-4 --dummy --fp16 --loss-scale 128 --steps 1 "
                "--val-interval 0 not-read",
                (const char *const[]){"--dummy: write --synthetic 1281167", "--fp16: write --enable-amp-mode fp16",
                                      "--loss-scale: ", "1281167 training images", NULL});
    check_refused("--start-epoch 3: --resume", FILES_RUN "--start-epoch 3");
    check_refused("--gpu: \"x\" is not", FILES_RUN "--gpu x");
    check_refused("cuda", FILES_RUN "--gpu 1000 --steps 1");
}
END_TEST

/* ---- images that are none ---- */

static void check_says(const char *text)
{
    ck_assert_msg(strstr(text_of("log"), text), "\"%s\" is not in %s", text, text_of("log"));
}

/* A FIFO, and a file that no memory holds: they are told with their paths, and can be skipped. */
START_TEST(test_images_that_are_none)
{
    char path[128];
    make_images();
    snprintf(path, sizeof path, "%s/images/train/class1/fifo.png", run_folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    check_refused_on(1 + _i, "class1/fifo.png: not a regular file", FOLDER_RUN);
    check_runs(shardrun(1 + _i), FOLDER_RUN "--skip-bad-images 1");
    remove(path);
    write_file((bytes){(uint8_t *)"\x89PNG\r\n\x1a\n", 8}, "%s/images/train/class2/large.png", run_folder);
    snprintf(path, sizeof path, "%s/images/train/class2/large.png", run_folder);
    ck_assert_int_eq(truncate(path, (off_t)40 << 30), 0);
    check_refused_on(1 + _i, "class2/large.png: 42949672960 bytes are too many", FOLDER_RUN);
    check_runs(shardrun(1 + _i), FOLDER_RUN "--skip-bad-images 1");
    write_file((bytes){(uint8_t *)"x", 1}, "%s/images/train/class2/notes.webp", run_folder);
    drop_log();
    check_runs(shardrun(1 + _i), FOLDER_RUN "--skip-bad-images 1");
    check_says("images/train: 1 files or folders in its classes are not *.jpg, *.jpeg or *.png: they are left out");
}
END_TEST

/* What a path says is printed, and does nothing: no line of its own, no command to the terminal. */
START_TEST(test_paths_with_control_characters)
{
    char path[160];
    make_images();
    check_runs("", OWN_FOLDER_RUN "--steps 1 --output \"$(printf 'a\\nb\\033[2Jc\\302\\233d')\" images");
    drop_log();
    check_runs("", OWN_FOLDER_RUN "--steps 2 --resume \"$(printf 'a\\nb\\033[2Jc\\302\\233d')/checkpoint.safetensors\" images");
    const char *log = text_of("log");
    ck_assert_msg(strstr(log, "resumed from a\\nb\\x1b[2Jc\\xc2\\x9bd/checkpoint.safetensors: epoch 0, step 1\n"), "%s", log);
    ck_assert_msg(!strchr(log, '\033') && !strstr(log, "\302\233"), "%s", log);
    snprintf(path, sizeof path, "%s/images/train/class1/x\nshard error: fine\033[2J.png", run_folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    drop_log();
    check_runs("", FOLDER_RUN "--skip-bad-images 1");
    log = text_of("log");
    ck_assert_msg(strstr(log, "damaged image: images/train/class1/x") && !strchr(log, '\033') && !strstr(log, "\nshard error"), "%s", log);
}
END_TEST

/* ---- a last layer of fewer classes than ranks ---- */

static const struct {
    const char *options, *dim; /* dim: of the ranks' split */
} few[] = {
    {"--num-classes 1", "column"},
    {"--num-classes 2 --enable-zero-optim=3 --clip-grad 0.5", "column"},
    {"--num-classes 2 --enable-zero-optim=1 --optimizer adam", "column"},
    {"--num-classes 2 --enable-zero-optim=2", "row"},
    {"--num-classes 4 --optimizer lamb", "column"},
};

/* Some ranks have no part of it: the losses are those of one process, and so is what is saved. */
START_TEST(test_fewer_classes_than_ranks)
{
#define FEW "-a resnet18 --stem small --width 8 --image-size 8 --synthetic 20 -b 6 --lr 1e-4 -j 1 --dtype float64 --epochs 2 "
#define FEW_SPLIT FEW "--enable-model-parallel --model-parallel-dim %s "
    const char *options = few[_i].options, *dim = few[_i].dim;
    check_runs("", FEW "%s --steps 7 --metrics one.json", options);
    check_runs(shardrun(3), FEW_SPLIT "--sync-bn %s --steps 5 --metrics three.json --output few", dim, options);
    check_runs("", FEW "%s --steps 7 --metrics three.json --resume few/checkpoint.safetensors", options);
    check_metrics_agree("three.json", "one.json", 1e-7);
    check_runs("", FEW "%s -e --resume few/best.safetensors --metrics one.json", options);
    check_runs(shardrun(3), FEW_SPLIT "%s -e --resume few/best.safetensors --metrics three.json", dim, options);
    check_metrics_agree("three.json", "one.json", 1e-7);
}
END_TEST

/* ---- a checkpoint of each of the last steps ---- */

#define KEPT "kept/step-0000%02d/checkpoint.safetensors"

static bool is_kept(int step)
{
    char path[160];
    snprintf(path, sizeof path, "%s/" KEPT, run_folder, step);
    return access(path, F_OK) == 0;
}

/* Turns one bit in the middle of the file, or cuts it off there. */
static void damage(int step, bool cut)
{
    char path[160];
    struct stat status;
    snprintf(path, sizeof path, "%s/" KEPT, run_folder, step);
    ck_assert_int_eq(stat(path, &status), 0);
    off_t middle = status.st_size / 2;
    if (cut) {
        ck_assert_int_eq(truncate(path, middle), 0);
        return;
    }
    FILE *file = fopen(path, "r+b");
    ck_assert(file && fseeko(file, middle, SEEK_SET) == 0);
    int byte = fgetc(file);
    ck_assert(byte != EOF && fseeko(file, middle, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF);
    ck_assert_int_eq(fclose(file), 0);
}

/* Keeps a step's folder under a name that is of no step. */
static void copy_aside(int step)
{
    char command[400];
    snprintf(command, sizeof command, "cp -r '%s/kept/step-%06d' '%s/kept/step-%06d.bak'", run_folder, step, run_folder, step);
    ck_assert_int_eq(system(command), 0);
}

/* A run that begins, ends and goes on by --resume auto is the run in one, past damaged files too. */
START_TEST(test_resume_auto)
{
#define KEEP FILES_RUN "--epochs 3 --val-interval 0 --save-every 1 --keep 2 "
    check_runs("", FILES_RUN "--epochs 3 --val-interval 0 --steps 9 --metrics one.json");
    drop_log();
    check_runs(shardrun(2), KEEP "--enable-model-parallel --sync-bn --steps 5 --output kept --resume auto --metrics parts.json");
    ck_assert_msg(strstr(text_of("log"), "no checkpoint in kept: training begins\n"), "%s", text_of("log"));
    ck_assert(!is_kept(3) && is_kept(4) && is_kept(5));
    check_refused("--output kept has a checkpoint of step 5, and this run begins after step 0", KEEP "--steps 9 --output kept");
    check_refused("--output kept has checkpoints of a run with --keep: give it",
                  FILES_RUN "--steps 9 --output kept --resume auto");
    damage(5, _i == 0);
    drop_log();
    check_runs(_i == 0 ? shardrun(3) : "", KEEP "%s --steps 7 --output kept --resume auto --metrics parts.json",
               _i == 0 ? "--enable-model-parallel --sync-bn" : "");
    ck_assert_msg(strstr(text_of("log"), "resumed from "
                                         "kept/step-000004/checkpoint.safetensors: epoch 0, step 4\n"),
                  "%s", text_of("log"));
    check_runs(shardrun(2),
               KEEP "%s --enable-model-parallel --sync-bn --steps 9 --output kept --resume auto --metrics parts.json",
               _i == 0 ? "" : "--save-async");
    ck_assert(!is_kept(7) && is_kept(8) && is_kept(9));
    check_refused("--resume auto looks into --output's DIR", FILES_RUN "--resume auto --steps 9");
    check_refused("--keep 1: ", FILES_RUN "--keep 1 --output kept");
    check_refused("--shift takes the place of crops", FILES_RUN "--shift 0.1 --crop-scale 0.5");
    check_refused("--keep needs --output", FILES_RUN "--keep 2");
    check_refused("--save-async needs --output", FILES_RUN "--save-async");
    /* The steps after the damaged one are there twice, with the same losses. */
    line parts[MOST_LINES], one[MOST_LINES];
    int count = read_metrics("parts.json", parts), whole = read_metrics("one.json", one);
    ck_assert_int_eq(count, 10);
    ck_assert_int_eq(whole, 9);
    for (int i = 0; i < count; i++)
        ck_assert_msg(fabs(parts[i].loss - one[parts[i].step - 1].loss) < 1e-4 * (1 + fabs(parts[i].loss)), "line %d: step %d", i,
                      parts[i].step);
    damage(8, _i == 0);
    damage(9, _i == 0);
    copy_aside(9);
    check_refused("each of the 2 checkpoints in kept is damaged", KEEP "--steps 9 --output kept --resume auto");
}
END_TEST

/* Files that were written in the background are those of a run that waits for them, and a run goes on from them. */
START_TEST(test_save_async)
{
#define SAVES FILES_RUN "--optimizer adamw --enable-model-parallel --enable-zero-optim 2 --epochs 2 --save-every 1 "
    static const char *const names[] = {"checkpoint", "best", "model"};
    char command[200];
    check_runs(shardrun(2), SAVES "--output waited --metrics waited.json");
    drop_log();
    check_runs(shardrun(2), SAVES "--output async --save-async --metrics async.json");
    ck_assert_msg(strstr(text_of("log"), " checkpoints in the background: training waited for "), "%s", text_of("log"));
    for (int i = 0; i < 3; i++) {
        snprintf(command, sizeof command, "cd %s && cmp waited/%s.safetensors async/%s.safetensors", run_folder, names[i],
                 names[i]);
        ck_assert_int_eq(run_command(command), 0);
    }
    snprintf(command, sizeof command, "ls %s/async | grep -c tmp", run_folder);
    ck_assert_int_ne(run_command(command), 0);
    check_metrics_agree("waited.json", "async.json", 0);
    check_runs("", FILES_RUN "--optimizer adamw --epochs 3 --save-async --resume async/checkpoint.safetensors --output async "
                             "--metrics async.json");
}
END_TEST

/* Without --keep there is one file. */
START_TEST(test_resume_auto_one_file)
{
    check_runs("", FILES_RUN "--epochs 3 --val-interval 0 --steps 2 --output one_file --resume auto");
    drop_log();
    check_runs("", FILES_RUN "--epochs 3 --val-interval 0 --steps 3 --output one_file --resume auto");
    ck_assert_msg(strstr(text_of("log"), "resumed from one_file/checkpoint.safetensors: epoch 0, step 2\n"), "%s",
                  text_of("log"));
    ck_assert_msg(!strstr(text_of("log"), "this run's is"), "%s", text_of("log"));
}
END_TEST

/* Options that are legitimate and easily given by mistake are reported. */
START_TEST(test_says_what_is_unusual)
{
    drop_log();
    check_runs("", FILES_RUN "--epochs 3 --val-interval 0 --steps 2 --warmup-steps 3");
    check_says("without --output neither checkpoints nor the model are saved");
    check_says("the warmup has 3 steps and the run 2: the learning rate does not reach --lr");
    check_runs("", FILES_RUN "--epochs 3 --steps 2 --warmup-epochs 0.5 --lr-schedule cosine --output unusual");
    drop_log();
    check_runs("", FILES_RUN "--epochs 4 --lr 0.02 --wd 0 --clip-grad 1 --steps 3 --output unusual --resume auto --shift 0.1");
    check_says("unusual/checkpoint.safetensors: its epochs is 3, this run's is 4 (--epochs)");
    check_says("its lr is 0.001, this run's is 0.02 (--lr)");
    ck_assert_msg(!strstr(text_of("log"), "head_lr"), "%s", text_of("log"));
    check_says(
        "its lr_schedule is cosine to 0, a warmup of 0.5 epochs, this run's is step, times 0.1 every 30 epochs (--lr-schedule)");
    check_says("its weight_decay is 0.0001, this run's is 0 (--wd)");
    check_says("its clip_grad is 0, this run's is 1 (--clip-grad)");
    check_says("its validation_crop is center, this run's is none (--shift)");
    /* model.safetensors is there before the first validation. */
    drop_log();
    check_runs("", "-a resnet18 --stem small --width 8 --image-size 16 --synthetic 34 --num-classes 11 -b 6 -j 1 -e --shift 0.1 "
                   "--pretrained unusual/model.safetensors");
    check_says("unusual/model.safetensors: its image_size is 8, this run's is 16 (--image-size)");
    ck_assert_msg(!strstr(text_of("log"), "validation_crop"), "%s", text_of("log"));
    ck_assert_msg(!strstr(text_of("log"), "its lr"), "%s", text_of("log"));

    /* A run that fine-tunes begins and goes on by one command line, also where the first values are no longer there. */
    for (int i = 0; i < 2; i++) {
        drop_log();
        check_runs("",
                   FILES_RUN "--epochs 3 --val-interval 0 --steps %d --pretrained %s/model.safetensors --output tuned "
                             "--resume auto",
                   i + 1, i ? "removed" : "unusual");
        check_says(i ? "resumed from tuned/checkpoint.safetensors: epoch 0, step 1" : "no checkpoint in tuned: training begins");
    }
    check_refused("either --resume FILE or --pretrained",
                  FILES_RUN "--pretrained unusual/model.safetensors --resume tuned/checkpoint.safetensors");

    /* A run that goes on from one folder does not replace another run's files in a second one. */
#define MOVED FILES_RUN "--epochs 3 --val-interval 0 --steps 3 --resume tuned/checkpoint.safetensors --output "
    check_refused("--output unusual has a checkpoint.safetensors: ", MOVED "unusual");
    check_runs("", MOVED "unusual --overwrite");
    check_runs("", MOVED "./tuned/../tuned");
    check_runs("", FILES_RUN "--steps 1 --val-interval 0 --keep 2 --output kept");
    check_refused("--output kept has a checkpoint of step 1 of another run: ", MOVED "kept --keep 2 --overwrite");
    check_runs("", FILES_RUN "--steps 2 --val-interval 0 --keep 2 --output kept "
                             "--resume kept/step-000001/checkpoint.safetensors");
    char command[200];
    snprintf(command, sizeof command,
             "cd %s && mkdir tuned/backup && cp tuned/checkpoint.safetensors tuned/backup && "
             "ln -s tuned/checkpoint.safetensors linked.safetensors",
             run_folder);
    ck_assert_int_eq(run_command(command), 0);
#define GOES_ON FILES_RUN "--epochs 3 --val-interval 0 --steps 4 --output tuned --resume "
    check_refused("--output tuned has a checkpoint.safetensors: ", GOES_ON "tuned/backup/checkpoint.safetensors");
    check_runs("", GOES_ON "linked.safetensors");
    check_refused("--resume auto goes on, and --overwrite begins anew", FILES_RUN "--output tuned --resume auto --overwrite");
}
END_TEST

/* A batch norm has no statistics of one pixel of one image: said before the epoch. */
START_TEST(test_last_batch_of_one_image)
{
#define LAST "-a resnet18 --stem small --width 8 --image-size 8 --num-classes 3 -j 1 -b 6 --epochs 1 --val-interval 0 "
    check_refused("the last batch of an epoch has 1 images: a rank with one of them", LAST "--synthetic 7");
    check_refused_on(2, "take another --batch-size, or --sync-bn", LAST "--synthetic 9");
    check_runs(shardrun(2), LAST "--synthetic 9 --sync-bn");
    check_runs(shardrun(2), LAST "--synthetic 10");
    check_runs("", LAST "--synthetic 7 --steps 1");
}
END_TEST

/* ---- ranks that are given other things ---- */

/* Three ranks, of which the last one has `more` on its command line. */
static void check_differs(const char *more, const char *first, const char *last)
{
    char options[512], told[256];
    snprintf(options, sizeof options, "%s -n 3 sh -c 'test $RANK = 2 && more=\"%s\"; exec \"$@\" $more' sh", getenv("SHARDRUN"), more);
    snprintf(told, sizeof told, "options differ between ranks: rank 0 has %s, rank 2 has %s;", first, last);
    drop_log();
    ck_assert_int_ne(run(options, FILES_RUN "--steps 2 --val-interval 0"), 0);
    const char *log = text_of("log"), *error = strstr(log, " error: ");
    ck_assert_msg(error && strstr(error, told) && !strstr(error + 1, " error: "), "not one error with \"%s\": %s", told, log);
}

START_TEST(test_other_options)
{
    static const char *const differing[][3] = {
        {"-a resnet34", "--arch resnet18", "--arch resnet34"},
        {"--stem imagenet", "--stem small", "--stem imagenet"},
        {"--num-classes 12", "--num-classes 11", "--num-classes 12"},
        {"--pretrained trained/best.safetensors", "--pretrained not given", "--pretrained given"},
        {"--synthetic 35", "--synthetic 34", "--synthetic 35"},
        {"--image-size 9", "--image-size 8", "--image-size 9"},
        {"--no-flip", "--no-flip not given", "--no-flip given"},
        {"--skip-bad-images 1", "--skip-bad-images 0", "--skip-bad-images 1"},
        {"--enable-amp-mode=fp16", "--enable-amp-mode none", "--enable-amp-mode fp16"},
        {"--enable-zero-optim=2", "--enable-zero-optim none", "--enable-zero-optim 2"},
        {"--enable-model-parallel", "--enable-model-parallel not given", "--enable-model-parallel given"},
        {"--sync-bn", "--sync-bn not given", "--sync-bn given"},
        {"--epochs 91", "--epochs 90", "--epochs 91"},
        {"--steps 3", "--steps 2", "--steps 3"},
        {"-b 5", "--batch-size 6", "--batch-size 5"},
        {"--accumulate 2", "--accumulate 1", "--accumulate 2"},
        {"--optimizer adam", "--optimizer sgd", "--optimizer adam"},
        {"--clip-grad 0.5", "--clip-grad 0", "--clip-grad 0.5"},
        {"--lr 0.0010000000000000002", "--lr 0.001", "--lr 0.0010000000000000002"},
        {"--wd 0.5", "--wd 0.0001", "--wd 0.5"},
        {"--seed 8", "--seed 7", "--seed 8"},
        {"--metrics one.json", "--metrics not given", "--metrics given"},
        {"--memory-report", "--memory-report not given", "--memory-report given"},
        {"--help", "--help not given", "--help given"},
    };
    for (size_t i = 0; i < sizeof differing / sizeof *differing; i++)
        check_differs(differing[i][0], differing[i][1], differing[i][2]);
    char launcher[256]; /* what is a rank's own */
    snprintf(launcher, sizeof launcher, "%s -n 2 sh -c 'exec \"$@\" -j $RANK --print-freq 1$RANK' sh", getenv("SHARDRUN"));
    check_runs(launcher, FILES_RUN "--steps 1 --val-interval 0");
}
END_TEST

/* Values of many bytes, whose last one differs on rank 1. */
START_TEST(test_other_long_options)
{
    static const struct {
        int bytes;
        const char *last;
    } values[] = {{200, "00001; start all"}, {1500, " has --pretrained-skip of 1503 bytes, hash "}};
    for (int i = 0; i < 2; i++) {
        char launcher[256];
        snprintf(launcher, sizeof launcher,
                 "%s -n 3 sh -c 'exec \"$@\" --pretrained trained/best.safetensors --pretrained-skip fc,$(printf %%0%dd $((RANK "
                 "== 1)))' sh",
                 getenv("SHARDRUN"), values[i].bytes);
        drop_log();
        ck_assert_int_ne(run(launcher, FILES_RUN "--steps 2 --val-interval 0"), 0);
        const char *log = text_of("log"), *second = strstr(log, ", rank 1 has --pretrained-skip ");
        ck_assert_msg(strstr(log, "options differ between ranks: rank 0 has --pretrained-skip ") && second &&
                          strstr(second, values[i].last),
                      "not an error with \"%s\": %s", values[i].last, log);
    }
}
END_TEST

/* Each rank has a copy of the images of its own, images0 and images1, of which `change` changes the second. */
static void check_other_images(const char *change, const char *told)
{
    char command[512], launcher[256];
    snprintf(command, sizeof command, "cd %s && rm -rf images0 images1 && cp -r images images0 && cp -r images images1 && cd images1 && %s",
             run_folder, change);
    ck_assert_int_eq(run_command(command), 0);
    snprintf(launcher, sizeof launcher, "%s -n 2 sh -c 'exec \"$@\" images$RANK' sh", getenv("SHARDRUN"));
    drop_log();
    int code = run(launcher, OWN_FOLDER_RUN);
    const char *log = text_of("log"), *error = strstr(log, " error: ");
    if (!told)
        ck_assert_msg(code == 0, "%s", log);
    else
        ck_assert_msg(error && strstr(error, told) && !strstr(error + 1, " error: "), "not one error with \"%s\": %s", told, log);
}

/* Crops, mirrored images and shifts each change the losses; without them (a shift of nearly nothing takes the place of crops) the
 * second epoch has those of the first, as nothing is learned. */
START_TEST(test_augmentation)
{
    static const char *const options[] = {"", "", "--no-flip", "--crop-scale 1", "--no-flip --shift 1e-9", "--shift 0.2"};
    enum { RUNS = sizeof options / sizeof *options };
    line lines[RUNS][MOST_LINES];
    make_images();
    for (int i = 0; i < RUNS; i++) {
        char name[40];
        snprintf(name, sizeof name, "augmented%d.json", i);
        check_runs(
            "",
            "-a resnet18 --stem small --width 8 --image-size 8 -b 100 -j 1 --lr 1e-12 --seed 7 --epochs 2 --val-interval 0 %s "
            "--metrics %s images",
            options[i], name);
        ck_assert_int_eq(read_metrics(name, lines[i]), 2);
    }
    for (int epoch = 0; epoch < 2; epoch++)
        for (int i = 1; i < RUNS; i++)
            ck_assert_msg((lines[i][epoch].loss == lines[0][epoch].loss) == (i == 1),
                          "epoch %d: loss %.9g with \"%s\", %.9g without", epoch, lines[i][epoch].loss, options[i],
                          lines[0][epoch].loss);
    for (int i = 0; i < RUNS; i++) {
        bool same = fabs(lines[i][0].loss - lines[i][1].loss) < 1e-5; /* of a batch in another order */
        ck_assert_msg(same == (i == 4), "\"%s\": losses %.9g, %.9g", options[i], lines[i][0].loss, lines[i][1].loss);
    }
}
END_TEST

START_TEST(test_other_images)
{
    char command[256];
    make_images();
    check_other_images("true", NULL);
    check_other_images("mv train/class1/2.png train/class1/5.png", "rank 0 has train/class1/2.png of ");
    check_other_images("cp train/class1/2.png train/class1/22.png", "rank 1 has train/class1/22.png of ");
    check_other_images("rm -r val/class2", "rank 0 has val/class2/4.png of ");
    check_other_images("rm -r val/class2", ", rank 1 has no more;");
    check_other_images("mv val/class0/4.png val/class0/3.png", "images differ between ranks: rank 0 has val/class0/4.png of ");
    check_other_images("mv train/class0 train/class9; mv val/class0 val/class9", "rank 1 has train/class1/0.png of ");
    check_other_images("printf x >>train/class2/3.png", "rank 1 has train/class2/3.png of ");
    snprintf(command, sizeof command, "cd %s/images/train && mv class1/2.png class1/$(printf %%0200d 2).png", run_folder);
    ck_assert_int_eq(run_command(command), 0);
    check_other_images("cd train/class1; mv $(printf %0200d 2).png $(printf %0200d 3).png", "0003.png of ");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("the trainer's files");
    TCase *tcase = test_case(suite, "pretrained");
    tcase_set_timeout(tcase, 60);
    tcase_add_unchecked_fixture(tcase, make_trained, drop_single);
    tcase_add_test(tcase, test_pretrained);
    tcase_add_test(tcase, test_pretrained_of_another_architecture);
    tcase_add_test(tcase, test_pretrained_without_final_layer);
    tcase_add_test(tcase, test_pretrained_of_other_classes);
    tcase_add_test(tcase, test_pretrained_statistics);
    tcase_add_test(tcase, test_words_that_are_no_files);
    tcase_add_test(tcase, test_options_of_pytorch);
    tcase_add_test(tcase, test_other_options);
    tcase_add_test(tcase, test_other_long_options);
    TCase *images = test_case(suite, "images");
    tcase_add_checked_fixture(images, make_run_folder, drop_single);
    tcase_add_loop_test(images, test_images_that_are_none, 0, 2);
    tcase_add_test(images, test_augmentation);
    tcase_add_test(images, test_other_images);
    tcase_add_test(images, test_paths_with_control_characters);
    tcase_add_loop_test(images, test_resume_auto, 0, 2);
    tcase_add_test(images, test_save_async);
    tcase_add_test(images, test_resume_auto_one_file);
    tcase_add_test(images, test_says_what_is_unusual);
    tcase_add_test(images, test_last_batch_of_one_image);
    tcase_add_loop_test(images, test_fewer_classes_than_ranks, 0, sizeof few / sizeof *few);
    return test_run(suite);
}
