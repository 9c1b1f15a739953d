#include "support/trainer.h"

#include "support/pictures.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char run_folder[64];

/* ---- running ---- */

int run_command(const char *command)
{
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run(const char *launcher, const char *format, ...)
{
    char options[1024], command[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(options, sizeof options, format, arguments);
    va_end(arguments);
    snprintf(command, sizeof command, "cd %s && %s %s %s >>log 2>&1", run_folder, launcher, getenv("IMAGENET"), options);
    return run_command(command);
}

char *text_of(const char *name)
{
    char path[128];
    static char text[1 << 16];
    snprintf(path, sizeof path, "%s/%s", run_folder, name);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "%s was not written", path);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

const char *shardrun(int ranks)
{
    static char launcher[512];
    if (ranks == 1)
        return "";
    snprintf(launcher, sizeof launcher, "%s -n %d", getenv("SHARDRUN"), ranks);
    return launcher;
}

void drop_file(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", run_folder, name);
    unlink(path);
}

void drop_log(void)
{
    drop_file("log");
}

void check_refused_on(int ranks, const char *pattern, const char *options)
{
    drop_log();
    ck_assert_msg(run(shardrun(ranks), "%s", options) != 0, "no error with \"%s\": %s", pattern, text_of("log"));
    const char *log = text_of("log"), *told = strstr(log, " error: ");
    ck_assert_msg(told && strstr(told, pattern), "no error with \"%s\" in: %s", pattern, log);
    ck_assert_msg(!strstr(told + 1, " error: "), "more than one error: %s", log);
}

void check_refused(const char *pattern, const char *options)
{
    check_refused_on(1, pattern, options);
}

void make_run_folder(void)
{
    make_folder(run_folder);
    setenv("OMP_NUM_THREADS", "1", 1);
}

void make_single(void)
{
    make_run_folder();
    if (run("", RUN "--steps %d --metrics single.json --output single", STEPS) != 0)
        fprintf(stderr, "the single run failed: %s\n", text_of("log"));
}

void drop_single(void)
{
    remove_folder(run_folder);
}

/* ---- images ---- */

void make_images(void)
{
    for (int label = 0; label < 3; label++)
        for (int i = 0; i < 5; i++) {
            uint8_t *picture = smooth_picture(20, 24, label * 10 + i);
            bytes png = png_bytes(picture, 20, 24, (png_kind){.color = 2, .depth = 8});
            write_file(png, "%s/images/%s/class%d/%d.png", run_folder, i < 4 ? "train" : "val", label, i);
            free(png.data);
            free(picture);
        }
}

/* ---- metrics ---- */

static double number_in(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    ck_assert_msg(at != NULL, "no %s in the metrics: %s", name, text);
    return strtod(at + strlen(name), NULL);
}

static void read_ranks(const char *text, line *into)
{
    for (const char *at = strstr(text, "\"ranks\":["); at && (at = strstr(at, "{\"rank\":")); at++) {
        ck_assert_int_lt(into->ranks, MOST_RANKS);
        into->rank_images[into->ranks++] = (int)number_in(at, "\"images\":");
    }
}

int read_metrics(const char *name, line *lines)
{
    char *rest, *text = strtok_r(text_of(name), "\n", &rest);
    int count = 0;
    for (; text; text = strtok_r(NULL, "\n", &rest)) {
        ck_assert_int_lt(count, MOST_LINES);
        ck_assert_msg(text[0] == '{' && text[strlen(text) - 1] == '}', "no whole object: %s", text);
        line *into = &lines[count++];
        *into = (line){
            .validation = strstr(text, "\"validation\":true") != NULL,
            .step = (int)number_in(text, "\"step\":"),
            .images = (int)number_in(text, "\"images\":"),
            .loss = number_in(text, "\"loss\":"),
            .top1 = number_in(text, "\"top1\":"),
            .top5 = number_in(text, "\"top5\":"),
            .peak_mib = number_in(text, "\"peak\":"),
        };
        read_ranks(text, into);
        if (!into->validation)
            into->grad_scale = number_in(text, "\"grad_scale\":");
        into->left_out = strstr(text, "\"left_out\":true") != NULL;
        snprintf(into->loss_text, sizeof into->loss_text, "%.17g", into->loss);
        ck_assert_msg(into->validation || number_in(text, "\"lr\":") > 0, "no lr: %s", text);
        ck_assert_msg(number_in(text, "\"images_per_second\":") > 0 && number_in(text, "\"step_seconds\":") > 0 &&
                          number_in(text, "\"current\":") > 0 &&
                          number_in(text, "\"peak\":") >= number_in(text, "\"current\":") && number_in(text, "\"rss_mib\":") > 0,
                      "a measure is missing: %s", text);
    }
    ck_assert_msg(count > 0, "%s has no lines", name);
    return count;
}

void check_metrics_agree(const char *name, const char *other, double tolerance)
{
    line a[MOST_LINES], b[MOST_LINES];
    int count = read_metrics(name, a);
    ck_assert_int_eq(count, read_metrics(other, b));
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(a[i].step, b[i].step);
        ck_assert_int_eq(a[i].validation, b[i].validation);
        ck_assert_msg(fabs(a[i].loss - b[i].loss) <= tolerance, "%s at step %d%s: loss %.9f, not %.9f as %s", name, a[i].step,
                      a[i].validation ? " (validation)" : "", a[i].loss, b[i].loss, other);
        ck_assert_msg(a[i].top1 == b[i].top1 && a[i].top5 == b[i].top5, "%s at step %d%s: top1 %g top5 %g, not %g and %g as %s",
                      name, a[i].step, a[i].validation ? " (validation)" : "", a[i].top1, a[i].top5, b[i].top1, b[i].top5, other);
    }
}
