/* Scopes: what is made inside goes at the end, by whichever way it is left. */
#include "support/check.h"
#include "support/scratch.h"

#include <shard/op.h>

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static int64_t in_use(void)
{
    return shard_get_memory_stats(shard_device_open(NULL)).current;
}

/* A tensor of 1000 bytes that has its memory. */
static shard_tensor *kilobyte(void)
{
    shard_tensor *tensor = shard_zeros(SHARD_SHAPE(1000), .dtype = SHARD_UINT8);
    ck_assert_ptr_nonnull(shard_data(tensor));
    return tensor;
}

/* Writes all of its memory. */
static void touch(shard_tensor *tensor)
{
    unsigned char ones[1000];
    memset(ones, 1, sizeof ones);
    ck_assert_int_eq(shard_copy_from_host(tensor, ones, sizeof ones), SHARD_OK);
}

START_TEST(frees_at_its_end)
{
    SHARD_SCOPE {
        kilobyte();
        kilobyte();
        ck_assert_int_eq(in_use(), 2000);
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

START_TEST(nests)
{
    SHARD_SCOPE {
        shard_tensor *outer = kilobyte();
        SHARD_SCOPE {
            kilobyte();
            SHARD_SCOPE
                kilobyte();
            ck_assert_int_eq(in_use(), 2000);
        }
        ck_assert_int_eq(in_use(), 1000);
        kilobyte();
        ck_assert_int_eq(in_use(), 2000);
        touch(outer);
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

static int leave_by_return(void)
{
    SHARD_SCOPE {
        kilobyte();
        SHARD_SCOPE {
            kilobyte();
            return 1;
        }
    }
    return 2;
}

START_TEST(is_left_by_return)
{
    ck_assert_int_eq(leave_by_return(), 1);
    ck_assert_int_eq(in_use(), 0);
    shard_release(kilobyte()); /* no scope is open */
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

START_TEST(is_left_by_break_and_goto)
{
    int turns = 0;
    for (int i = 0; i < 3; i++) {
        SHARD_SCOPE {
            kilobyte();
            if (i < 2)
                break; /* leaves the scope, not the loop */
            kilobyte();
        }
        ck_assert_int_eq(in_use(), 0);
        turns++;
    }
    ck_assert_int_eq(turns, 3);
    SHARD_SCOPE {
        kilobyte();
        SHARD_SCOPE {
            kilobyte();
            goto out;
        }
    }
out:
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

START_TEST(is_entered_in_a_loop)
{
    for (int i = 0; i < 5; i++)
        SHARD_SCOPE {
            kilobyte();
            if (i % 2)
                continue; /* the next turn of the scope, of which there is none */
            ck_assert_int_eq(in_use(), 1000);
        }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

START_TEST(lets_go_earlier)
{
    SHARD_SCOPE {
        shard_tensor *first = kilobyte(), *second = kilobyte(), *third = kilobyte();
        shard_release(second);
        ck_assert_int_eq(in_use(), 2000);
        shard_release(first);
        shard_release(third);
        ck_assert_int_eq(in_use(), 0);
        shard_release(NULL);
        kilobyte();
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

START_TEST(keeps)
{
    shard_tensor *kept = NULL;
    SHARD_SCOPE {
        kilobyte();
        SHARD_SCOPE {
            kilobyte();
            kept = shard_keep(kilobyte());
            kilobyte();
        }
        ck_assert_int_eq(in_use(), 2000);
        ck_assert_ptr_eq(shard_keep(kept), kept);
        ck_assert_ptr_null(shard_keep(NULL));
    }
    ck_assert_int_eq(in_use(), 1000);
    touch(kept);
    shard_release(kept);
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

/* A view, a record and a list hold their shares. */
START_TEST(shares)
{
    shard_tensors *list = shard_tensors_create();
    shard_tensor *view = NULL;
    SHARD_SCOPE {
        shard_tensor *tensor = kilobyte();
        view = shard_keep(shard_reshape(tensor, SHARD_SHAPE(10, 100)));
        ck_assert_int_eq(shard_tensors_add(list, "listed", kilobyte()), SHARD_OK);
    }
    ck_assert_int_eq(in_use(), 2000);
    touch(view);
    shard_release(view);
    ck_assert_int_eq(in_use(), 1000);
    touch(shard_tensors_find(list, "listed"));
    shard_tensors_destroy(list);
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

/* Operations leave nothing but their result in the scope, or with their caller. */
START_TEST(holds_results_alone)
{
    shard_shape shape = SHARD_SHAPE(2, 4, 4, 8);
    const int64_t bytes = 2 * 4 * 4 * 8 * 8;
    shard_tensor *x = shard_full(shape, 0.5, .dtype = SHARD_FLOAT64);
    shard_data(x);
    shard_tensor *results[] = {shard_batch_norm(x, NULL, NULL, NULL, NULL, .training = true),
                               shard_layer_norm(x, NULL, NULL, 1e-5), shard_max_pool2d(x, 1), shard_softmax(x)};
    ck_assert_int_eq(in_use(), 5 * bytes);
    for (int i = 0; i < 4; i++)
        shard_release(results[i]);
    shard_tensor *sum = shard_sum(x);
    ck_assert_int_eq(in_use(), bytes + 8);
    shard_release(sum);
    ck_assert_ptr_null(shard_batch_norm(x, NULL, NULL, NULL, NULL));
    ck_assert_ptr_null(shard_max_pool2d(x, 9));
    ck_assert_int_eq(in_use(), bytes);
    shard_release(x);
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

/* What stands in the log after `count` tensors were made, of which `released` went at once. */
static char *log_of(int count, bool in_scope, bool released)
{
    static shard_tensor *made[20000];
    static char text[2000];
    const char *path = scratch_path("log");
    int before = dup(STDERR_FILENO), file = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600), kept = 0;
    ck_assert(file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    shard_scope scope = {.open = -1};
    if (in_scope)
        shard_scope_open(&scope);
    for (int i = 0; i < count; i++) {
        shard_tensor *tensor = shard_empty(SHARD_SHAPE(1));
        if (released)
            shard_release(tensor);
        else if (!in_scope)
            made[kept++] = tensor;
    }
    if (in_scope)
        shard_scope_close(&scope);
    while (kept > 0)
        shard_release(made[--kept]);
    ck_assert(dup2(before, STDERR_FILENO) >= 0);
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = '\0';
    close(file);
    close(before);
    return text;
}

/* Tensors that are released, but that a list still has, and those that are kept on purpose. */
static void keep_many(shard_tensors *list, shard_tensor **kept, int count)
{
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        shard_tensor *tensor = shard_empty(SHARD_SHAPE(1));
        ck_assert_int_eq(shard_tensors_add(list, name, tensor), SHARD_OK);
        shard_release(tensor);
        kept[i] = shard_keep(shard_empty(SHARD_SHAPE(1)));
    }
}

START_TEST(warns_of_what_piles_up)
{
    enum { MANY = 8000 };
    static shard_tensor *kept[MANY];
    shard_tensors *list = shard_tensors_create();
    keep_many(list, kept, MANY);
    ck_assert_str_eq(log_of(20000, true, false), "");
    ck_assert_str_eq(log_of(20000, false, true), "");
    ck_assert_str_eq(log_of(9999, false, false), "");
    ck_assert_str_eq(log_of(9999, false, false), ""); /* those before are gone */
    const char *text = log_of(20000, false, false);
    ck_assert_msg(strstr(text, "shard warn: 10000 tensors of this thread") == text && strstr(text, "SHARD_SCOPE"),
                  "the log has %s", text);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
    ck_assert_str_eq(log_of(20000, false, false), ""); /* once */
    shard_tensors_destroy(list);
    for (int i = 0; i < MANY; i++)
        shard_release(kept[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scope");
    TCase *tcase = test_case(suite, "scope");
    tcase_add_test(tcase, frees_at_its_end);
    tcase_add_test(tcase, nests);
    tcase_add_test(tcase, is_left_by_return);
    tcase_add_test(tcase, is_left_by_break_and_goto);
    tcase_add_test(tcase, is_entered_in_a_loop);
    tcase_add_test(tcase, lets_go_earlier);
    tcase_add_test(tcase, keeps);
    tcase_add_test(tcase, shares);
    tcase_add_test(tcase, holds_results_alone);
    tcase_add_test(tcase, warns_of_what_piles_up);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
