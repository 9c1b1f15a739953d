/* Image folders: order, numbering, what is passed over, and each error. */
#include "support/pictures.h"
#include "support/ranks.h"

#include "folder.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64], path[128];
static const bytes nothing;

static void set_up(void)
{
    make_folder(root);
}

static void tear_down(void)
{
    remove_folder(root);
}

static const char *in_root(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void check_image(const image_folder *folder, int64_t image, const char *name, int64_t label)
{
    char full[256], got[256];
    snprintf(full, sizeof full, "%s/%s", root, name);
    ck_assert(image_folder_path(folder, image, got, sizeof got));
    ck_assert_str_eq(got, full);
    ck_assert_int_eq(image_folder_label(folder, image), label);
    ck_assert(!image_folder_path(folder, image, got, strlen(full)));
}

static void make_training_split(void)
{
    static const char *const names[] = {"b/2.png", "b/10.JPG",   "b/1.jpeg",   "b/notes.txt", "b/.hidden.png",
                                        "a/z.jpg", "B/only.png", "readme.txt", ".git/x.png",  "a.b/y.png"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        write_file(nothing, "%s/train/%s", root, names[i]);
}

START_TEST(test_order)
{
    make_training_split();
    image_folder *train = image_folder_open(in_root("train"), NULL);
    ck_assert_msg(train != NULL, "%s", shard_last_error());
    ck_assert_int_eq(image_folder_classes(train), 4);
    static const char *const classes[] = {"B", "a", "a.b", "b"};
    for (int i = 0; i < 4; i++)
        ck_assert_str_eq(image_folder_class_name(train, i), classes[i]);
    ck_assert_int_eq(image_folder_images(train), 6);
    check_image(train, 0, "train/B/only.png", 0);
    check_image(train, 1, "train/a/z.jpg", 1);
    check_image(train, 2, "train/a.b/y.png", 2);
    check_image(train, 3, "train/b/1.jpeg", 3);
    check_image(train, 4, "train/b/10.JPG", 3);
    check_image(train, 5, "train/b/2.png", 3);
    image_folder_close(train);
}
END_TEST

/* Validation is numbered as training is, though it has fewer classes. */
START_TEST(test_known_classes)
{
    make_training_split();
    write_file(nothing, "%s/val/b/v.png", root);
    write_file(nothing, "%s/val/a.b/v.png", root);
    image_folder *train = image_folder_open(in_root("train"), NULL);
    image_folder *val = image_folder_open(in_root("val"), train);
    ck_assert_ptr_nonnull(val);
    ck_assert_int_eq(image_folder_classes(val), 4);
    ck_assert_str_eq(image_folder_class_name(val, 0), "B");
    check_image(val, 0, "val/a.b/v.png", 2);
    check_image(val, 1, "val/b/v.png", 3);
    image_folder_close(val);
    write_file(nothing, "%s/val/c/v.png", root);
    ck_assert_ptr_null(image_folder_open(in_root("val"), train));
    check_error(SHARD_ERROR_FORMAT, "*/val/c: */train has no such class");
    image_folder_close(train);
}
END_TEST

START_TEST(test_links)
{
    write_file(nothing, "%s/elsewhere/x.png", root);
    write_file(nothing, "%s/train/a/1.png", root);
    ck_assert_int_eq(symlink("../elsewhere", in_root("train/linked")), 0);
    ck_assert_int_eq(symlink("nowhere", in_root("train/dangling")), 0);
    image_folder *train = image_folder_open(in_root("train"), NULL);
    ck_assert_ptr_nonnull(train);
    ck_assert_int_eq(image_folder_classes(train), 2);
    check_image(train, 1, "train/linked/x.png", 1);
    image_folder_close(train);
}
END_TEST

START_TEST(test_many_images)
{
    for (int i = 0; i < 200; i++)
        write_file(nothing, "%s/train/a/%03d.png", root, i * 37 % 200);
    image_folder *train = image_folder_open(in_root("train"), NULL);
    ck_assert_ptr_nonnull(train);
    ck_assert_int_eq(image_folder_images(train), 200);
    for (int i = 0; i < 200; i++) {
        char name[32];
        snprintf(name, sizeof name, "train/a/%03d.png", i);
        check_image(train, i, name, 0);
    }
    image_folder_close(train);
}
END_TEST

START_TEST(test_many_classes)
{
    for (int i = 0; i < 1500; i++) {
        write_file(nothing, "%s/train/%04d/a.png", root, i * 7919 % 1500);
        write_file(nothing, "%s/train/%04d/b.png", root, i * 7919 % 1500);
    }
    image_folder *train = image_folder_open(in_root("train"), NULL);
    ck_assert_ptr_nonnull(train);
    ck_assert_int_eq(image_folder_images(train), 3000);
    for (int i = 0; i < 1500; i++) {
        char name[32];
        snprintf(name, sizeof name, "train/%04d/b.png", i);
        check_image(train, 2 * i + 1, name, i);
    }
    image_folder_close(train);
}
END_TEST

static void check_folder_fails(shard_status status, const char *pattern)
{
    ck_assert_ptr_null(image_folder_open(in_root("train"), NULL));
    check_error(status, pattern);
}

START_TEST(test_errors)
{
    check_folder_fails(SHARD_ERROR_IO, "*/train: No such file or directory");
    ck_assert_int_eq(mkdir(in_root("train"), 0777), 0);
    check_folder_fails(SHARD_ERROR_FORMAT, "*/train: no classes; images belong into */train/<class>/");
    ck_assert_int_eq(mkdir(in_root("train/cat"), 0777), 0);
    check_folder_fails(SHARD_ERROR_FORMAT, "*/train/cat: a class without images *");
    write_file(nothing, "%s/train/cat/deeper/1.png", root);
    check_folder_fails(SHARD_ERROR_FORMAT, "*/train/cat: a class without images *");
    write_file(nothing, "%s/train/dog.jpg", root);
    check_folder_fails(SHARD_ERROR_FORMAT, "*/train/dog.jpg: an image outside of a class; *");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("folder");
    TCase *tcase = test_case(suite, "folder");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, test_order);
    tcase_add_test(tcase, test_known_classes);
    tcase_add_test(tcase, test_links);
    tcase_add_test(tcase, test_many_images);
    tcase_add_test(tcase, test_many_classes);
    tcase_add_test(tcase, test_errors);
    return test_run(suite);
}
