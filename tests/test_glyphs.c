/*
 * make-glyphs on the letters of DejaVu's fonts: the folder's shape and
 * pictures, the kept-out font, what is refused. Its path comes in MAKE_GLYPHS;
 * without those fonts the test is skipped (exit status 77).
 */
#include "support/pictures.h"
#include "support/ranks.h"

#include "folder.h"
#include "image.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FONTS                                                                                                                    \
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf,/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf,"                      \
    "/usr/share/fonts/truetype/dejavu/DejaVuSerif.ttf"
/* A to Z, and the Greek A, B and E, which look the same. */
#define LETTERS "--fonts " FONTS " --val-font Serif --range 41-5A,391,392,395"

static char root[64], output[20000];

static void set_up(void)
{
    make_folder(root);
}

static void tear_down(void)
{
    remove_folder(root);
}

/* Runs it with these arguments; what it prints is in output. Returns its exit status. */
static int make_glyphs(const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "'%s' %s/out %s 2>&1", getenv("MAKE_GLYPHS"), root, arguments);
    FILE *stream = popen(command, "r");
    ck_assert_ptr_nonnull(stream);
    output[fread(output, 1, sizeof output - 1, stream)] = '\0';
    int status = pclose(stream);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void check_prints(const char *pattern)
{
    ck_assert_msg(fnmatch(pattern, output, 0) == 0, "printed: %s", output);
}

static image_folder *split(const char *name, const image_folder *classes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/out/%s", root, name);
    image_folder *folder = image_folder_open(path, classes);
    ck_assert_msg(folder != NULL, "%s", shard_last_error());
    return folder;
}

static void read_image(const image_folder *folder, int64_t which, image *picture)
{
    char path[256];
    image_file file = {0};
    ck_assert(image_folder_path(folder, which, path, sizeof path));
    check_ok(image_file_read(&file, path));
    check_ok(image_decode(&file, 8, picture));
    image_file_free(&file);
}

/* Black on white, whole and centred: ink within half a pixel of the margins on the longer side. */
static void check_drawn(const image *picture, int64_t size)
{
    int64_t top = size, bottom = -1, left = size, right = -1;
    ck_assert_int_eq(picture->height, size);
    ck_assert_int_eq(picture->width, size);
    for (int64_t i = 0; i < size * size; i++)
        if (picture->pixels[i * 3] < 128) {
            top = i / size < top ? i / size : top;
            bottom = i / size > bottom ? i / size : bottom;
            left = i % size < left ? i % size : left;
            right = i % size > right ? i % size : right;
        }
    int64_t longer = bottom - top > right - left ? bottom - top + 1 : right - left + 1;
    ck_assert_int_ge(longer, size * 15 / 16 - 2);
    ck_assert_int_lt(longer, size);
    ck_assert_int_le(llabs(top + bottom - (size - 1)), 2);
    ck_assert_int_le(llabs(left + right - (size - 1)), 2);
}

START_TEST(test_draws_letters)
{
    ck_assert_msg(make_glyphs(LETTERS " --size 48 --variants 3 -j 2") == 0, "%s", output);
    check_prints("*26 classes of 29 characters; left out: 0 that too few fonts draw, 3 that look like another one*");
    image_folder *train = split("train", NULL), *val = split("val", train);
    ck_assert_int_eq(image_folder_classes(train), 26);
    ck_assert_int_eq(image_folder_images(train), 26 * 2 * 3);
    ck_assert_int_eq(image_folder_images(val), 26);
    ck_assert_str_eq(image_folder_class_name(train, 0), "000041");
    ck_assert_str_eq(image_folder_class_name(train, 25), "00005A");
    image picture = {0};
    for (int64_t i = 0; i < 26; i++) {
        read_image(val, i, &picture);
        check_drawn(&picture, 48);
        for (int64_t k = 0; k < 2; k++) { /* the plain one is the first of each font's three */
            read_image(train, (i * 2 + k) * 3, &picture);
            check_drawn(&picture, 48);
        }
    }
    image_free(&picture);
    image_folder_close(val);
    image_folder_close(train);
}
END_TEST

START_TEST(test_variants_differ)
{
    ck_assert_int_eq(make_glyphs(LETTERS " --variants 4"), 0);
    image_folder *train = split("train", NULL);
    image pictures[4] = {0};
    for (int64_t i = 0; i < image_folder_images(train); i += 4) {
        for (int64_t k = 0; k < 4; k++)
            read_image(train, i + k, &pictures[k]);
        for (int64_t k = 1; k < 4; k++)
            for (int64_t j = 0; j < k; j++)
                ck_assert_mem_ne(pictures[j].pixels, pictures[k].pixels, 32 * 32 * 3);
    }
    for (int k = 0; k < 4; k++)
        image_free(&pictures[k]);
    image_folder_close(train);
}
END_TEST

/* The same command again does nothing, another one draws anew and leaves nothing behind. */
START_TEST(test_again)
{
    ck_assert_int_eq(make_glyphs(LETTERS " --variants 2"), 0);
    check_prints("*done: 26 classes, 104 training and 26 validation images of 32 x 32 pixels\n*");
    ck_assert_int_eq(make_glyphs(LETTERS " --variants 2"), 0);
    check_prints("* is there already; done: 26 classes, 104 training and 26 validation images of 32 x 32 pixels\n");
    ck_assert_int_eq(make_glyphs(LETTERS " --classes 5 --dry-run"), 0);
    ck_assert_int_eq(make_glyphs(LETTERS " --classes 5"), 0);
    image_folder *train = split("train", NULL);
    ck_assert_int_eq(image_folder_classes(train), 5);
    ck_assert_int_eq(image_folder_images(train), 10);
    image_folder_close(train);
}
END_TEST

/* Of several kept-out fonts the first one named draws the validation pictures. */
START_TEST(test_keeps_several_out)
{
    ck_assert_int_eq(make_glyphs("--fonts " FONTS " --range 41-45 --min-fonts 1 --val-font Serif,Bold"), 0);
    image_folder *train = split("train", NULL), *val = split("val", train);
    char path[256];
    ck_assert_int_eq(image_folder_images(train), 5);
    ck_assert_int_eq(image_folder_images(val), 5);
    ck_assert(image_folder_path(train, 0, path, sizeof path));
    ck_assert_str_eq(strrchr(path, '/'), "/DejaVuSans-0.png");
    ck_assert(image_folder_path(val, 0, path, sizeof path));
    ck_assert_str_eq(strrchr(path, '/'), "/DejaVuSerif.png");
    image_folder_close(val);
    image_folder_close(train);
}
END_TEST

/* Fonts of one file name in two folders have pictures of their own. */
START_TEST(test_same_names)
{
    char command[1024];
    snprintf(command, sizeof command,
             "mkdir %s/a %s/b && cp /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf %s/a/X.ttf && "
             "cp /usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf %s/b/X.ttf",
             root, root, root, root);
    ck_assert_int_eq(system(command), 0);
    snprintf(command, sizeof command,
             "--fonts %s/a/X.ttf,%s/b/X.ttf,/usr/share/fonts/truetype/dejavu/DejaVuSerif.ttf --val-font Serif --range 41-5A",
             root, root);
    ck_assert_msg(make_glyphs(command) == 0, "%s", output);
    image_folder *train = split("train", NULL);
    ck_assert_int_eq(image_folder_images(train), 26 * 2);
    image_folder_close(train);
}
END_TEST

/* A run that was ended half way is done over. */
START_TEST(test_unfinished)
{
    char path[128];
    ck_assert_int_eq(make_glyphs(LETTERS), 0);
    snprintf(path, sizeof path, "%s/out/.make-glyphs", root);
    FILE *stamp = fopen(path, "r+");
    char text[4096];
    text[fread(text, 1, sizeof text - 1, stamp)] = '\0';
    ck_assert_int_eq(ftruncate(fileno(stamp), strstr(text, "done") - text), 0);
    fclose(stamp);
    ck_assert_int_eq(make_glyphs(LETTERS), 0);
    check_prints("*\n*/out done: 26 classes*");
}
END_TEST

START_TEST(test_refuses)
{
    static const struct {
        const char *arguments, *pattern;
        int status;
    } wrong[] = {
        {"--fonts " FONTS, "*--val-font is needed*", 2},
        {"--fonts " FONTS " --val-font Courier", "*no font here has \"Courier\" in its name*", 1},
        {"--fonts no-such-font --val-font a", "*no installed font has \"no-such-font\" in its name*", 1},
        {"--fonts /no/such.ttf --val-font a", "*/no/such.ttf: No such file*", 1},
        {LETTERS " --size 7", "*--size 7: not a whole number from 8 to 128*", 2},
        {LETTERS " --range 5A-41", "*--range 5A-41: not FIRST-LAST*", 2},
        {LETTERS " --classes 27", "*26 classes are too few*", 1},
        {LETTERS " --min-fonts 3", "*0 classes are too few*", 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_msg(make_glyphs(wrong[i].arguments) == wrong[i].status, "%s: %s", wrong[i].arguments, output);
        check_prints(wrong[i].pattern);
    }
    write_file((bytes){(uint8_t *)"mine", 4}, "%s/out/notes.txt", root);
    ck_assert_int_eq(make_glyphs(LETTERS), 1);
    check_prints("*/out is not empty and not made by make-glyphs*");
}
END_TEST

int main(void)
{
    if (access("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", R_OK) != 0) {
        printf("DejaVu's fonts are not here (Debian and Ubuntu: apt install fonts-dejavu-core)\n");
        return 77;
    }
    Suite *suite = suite_create("glyphs");
    TCase *tcase = test_case(suite, "glyphs");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, test_draws_letters);
    tcase_add_test(tcase, test_variants_differ);
    tcase_add_test(tcase, test_again);
    tcase_add_test(tcase, test_keeps_several_out);
    tcase_add_test(tcase, test_same_names);
    tcase_add_test(tcase, test_unfinished);
    tcase_add_test(tcase, test_refuses);
    return test_run(suite);
}
