/* The parts of projects/spell that know nothing of networks: the reader of its files, n-grams, the noise model, the pairs. */
#include "support/ranks.h"
#include "support/scratch.h"

#include "ngrams.h"
#include "pairs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *put(const char *name, const char *text)
{
    const char *path = scratch_path(name);
    write_file(path, text, strlen(text));
    return path;
}

static words *open_words(const char *text)
{
    words *dictionary = words_open(put("words.txt", text));
    ck_assert_msg(dictionary != NULL, "%s", shard_last_error());
    return dictionary;
}

/* ---- files ---- */

START_TEST(test_accepts)
{
    words *dictionary = open_words("a 3\nab 0\nb's 123456789012345\nß 7"); /* the last line may lack its end */
    ck_assert_int_eq(dictionary->count, 4);
    ck_assert_str_eq(words_at(dictionary, 2), "b's");
    ck_assert_int_eq(dictionary->times[2], 123456789012345);
    for (int64_t i = 0; i < 4; i++)
        ck_assert_int_eq(words_find(dictionary, words_at(dictionary, i)), i);
    ck_assert_int_eq(words_find(dictionary, ""), -1);
    ck_assert_int_eq(words_find(dictionary, "aa"), -1);
    ck_assert_int_eq(words_find(dictionary, "zz"), -1);
    typed_words *typed = words_open_typed(put("test.txt", "abb ab\nb b's\nabb a\n"), dictionary);
    ck_assert_msg(typed != NULL, "%s", shard_last_error());
    ck_assert_int_eq(typed->count, 3);
    ck_assert_str_eq(words_typed_at(typed, 1), "b");
    ck_assert(typed->class[0] == 1 && typed->class[1] == 2 && typed->class[2] == 0);
    words_close_typed(typed);
    words_close(dictionary);
}
END_TEST

/* Dictionaries with another word, with a letter in another word, and with another count. */
START_TEST(test_hash)
{
    static const char *const texts[] = {"ab 1\nc 2\n", "ac 1\nc 2\n", "a 1\nbc 2\n", "ab 1\nc 3\n"};
    words *first = open_words(texts[0]), *other = open_words(texts[_i]);
    ck_assert((words_hash(first, false) == words_hash(other, false)) == (_i == 0 || _i == 3));
    ck_assert((words_hash(first, true) == words_hash(other, true)) == (_i == 0));
    ck_assert(words_hash(first, true) != words_hash(first, false));
    words_close(first);
    words_close(other);
}
END_TEST

#define LETTERS "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" /* 63 */
static const struct {
    const char *text, *pattern; /* after the path */
} bad[] = {
    {"", ": 0 words; *"},
    {"a 1\n", ": 1 words; *"},
    {"a 1\nb\n", ": line 2: \"b\": *not two words*"},
    {"a 1\n\n", ": line 2: \"\": *not two words*"},
    {"a 1\n 2\n", ": line 2: \" 2\": *not two words*"},
    {"a 1\nb \n", ": line 2: \"b \": *not two words*"},
    {"a 1\nb 2 3\n", ": line 2: \"b 2 3\": *not two words*"},
    {"a 1\nb -2\n", ": line 2: \"b\": its count *"},
    {"a 1\nb 2.5\n", ": line 2: \"b\": its count *"},
    {"a 1\nb 1234567890123456\n", ": line 2: \"b\": its count *"},
    {"a 1\na 2\n", ": line 2: \"a\": words are sorted*"},
    {"b 1\na 2\n", ": line 2: \"a\": words are sorted*"},
    {LETTERS "a 1\nb 2\n", ": line 1: *more than 63 bytes"},
};

START_TEST(test_refuses)
{
    char pattern[512];
    const char *path = put("words.txt", bad[_i].text);
    snprintf(pattern, sizeof pattern, "%s%s", path, bad[_i].pattern);
    ck_assert(words_open(path) == NULL);
    check_error(SHARD_ERROR_FORMAT, pattern);
}
END_TEST

START_TEST(test_refuses_tests)
{
    static const char *const texts[] = {"", "abb\n", "abb ab c\n", "abb c\n"};
    words *dictionary = open_words("a 1\nab 1\n");
    ck_assert(words_open_typed(put("test.txt", texts[_i]), dictionary) == NULL);
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_FORMAT);
    shard_clear_error();
    words_close(dictionary);
}
END_TEST

START_TEST(test_refuses_other_files)
{
    static const char zero[] = "a 1\nb\0c 2\n";
    write_file(scratch_path("zero.txt"), zero, sizeof zero - 1);
    ck_assert(words_open(scratch_path("zero.txt")) == NULL);
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_FORMAT);
    shard_clear_error();
    ck_assert(words_open("/nowhere/words.txt") == NULL);
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_IO);
    shard_clear_error();
    ck_assert(words_open("/") == NULL);
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_IO);
    shard_clear_error();
    ck_assert_int_eq(mkfifo(scratch_path("fifo"), 0600), 0);
    ck_assert(words_open(scratch_path("fifo")) == NULL);
    check_error(SHARD_ERROR_IO, "*/fifo: not a regular file");
}
END_TEST

/* A line is refused before all of it is in memory. */
START_TEST(test_refuses_a_long_line)
{
    char text[160 + sizeof "\nb 2\n"];
    memset(text, 'a', sizeof text);
    strcpy(text + 158, " 1\nb 2\n");
    ck_assert(words_open(put("words.txt", text)) == NULL);
    check_error(SHARD_ERROR_FORMAT, "*: line 1: *: a line of more than 159 bytes");
    strcpy(text + 157, " 1\nb 2\n");
    ck_assert(words_open(put("words.txt", text)) == NULL);
    check_error(SHARD_ERROR_FORMAT, "*: line 1: *: its word has more than 63 bytes");
}
END_TEST

/* ---- n-grams ---- */

/* Of SplitMix64 in Python: 1 + hash(kind, the bytes as a number) % (rows - 1), for ^word$ of "ab", "ß" and "". */
START_TEST(test_ngrams)
{
    static const struct {
        const char *word;
        int64_t rows, row[10];
        int count;
    } expected[] = {{"ab", 1000, {767, 967, 399, 822, 616, 514, 827, 76, 197, 293}, 10},
                    {"ß", 32768, {19663, 24753, 23647, 19032, 27174, 19479, 28727, 16365, 10793, 23923}, 10},
                    {"", 10, {4}, 1}};
    int64_t row[NGRAMS_MOST];
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(ngrams_list(expected[i].word, expected[i].rows, row), expected[i].count);
        ck_assert_mem_eq(row, expected[i].row, sizeof *row * (size_t)expected[i].count);
    }
}
END_TEST

/* All rows are in range, and a word of 63 bytes has all of its features. */
START_TEST(test_ngrams_of_long_words)
{
    int64_t row[NGRAMS_MOST];
    char word[NOISE_MOST_BYTES + 1];
    memset(word, 'x', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    ck_assert_int_eq(ngrams_list(word, 2, row), NGRAMS_MOST);
    for (int i = 0; i < NGRAMS_MOST; i++)
        ck_assert_int_eq(row[i], 1);
    word[63] = '\0';
    ck_assert_int_eq(ngrams_list(word, 77, row), 63 + 64 + 63 + 62 + 63);
    for (int i = 0; i < 63 + 64 + 63 + 62 + 63; i++)
        ck_assert(row[i] >= 1 && row[i] < 77);
}
END_TEST

/* ---- noise ---- */

/* Letters in which two words differ, with adjacent ones that changed places as one: optimal string alignment. */
static int distance(const char *a, const char *b)
{
    static int at[80][320];
    int m = (int)strlen(a), n = (int)strlen(b);
    for (int i = 0; i <= m; i++)
        for (int k = 0; k <= n; k++) {
            int best = i + k;
            if (i && k)
                best = at[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
            if (i && at[i - 1][k] + 1 < best)
                best = at[i - 1][k] + 1;
            if (k && at[i][k - 1] + 1 < best)
                best = at[i][k - 1] + 1;
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1] && at[i - 2][k - 2] + 1 < best)
                best = at[i - 2][k - 2] + 1;
            at[i][k] = best;
        }
    return at[m][n];
}

/* Of 20,000 draws of a word: most have an error, few have several, and there are many different ones. */
START_TEST(test_noise)
{
    static const char word[] = "accommodation";
    char typed[NOISE_MOST_BYTES + 1];
    int with[16] = {0}, first = 0;
    uint64_t seen = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        random_stream stream = random_start(1, 2, i);
        noise_apply(&stream, word, typed);
        int errors = distance(word, typed);
        with[errors < 15 ? errors : 15]++;
        first += typed[0] != word[0];
        seen |= (uint64_t)1 << random_hash(strlen(typed), (unsigned char)typed[2], (unsigned char)typed[5]) % 64;
    }
    ck_assert_msg(with[0] > 800 && with[0] < 2400, "%d of 20000 have no error", with[0]);
    ck_assert_msg(with[1] > 11000 && with[1] < 16000, "%d of 20000 have one error", with[1]);
    ck_assert_msg(with[2] > 2000, "%d of 20000 have two errors", with[2]);
    ck_assert_msg(first > 100 && first < 2000, "%d of 20000 begin with another letter", first);
    ck_assert_msg(__builtin_popcountll(seen) > 50, "few different results: %llx", (unsigned long long)seen);
}
END_TEST

/* The kinds of errors, each found among many draws; words of any bytes end, and those of UTF-8 stay UTF-8. */
START_TEST(test_noise_kinds)
{
    static const char *const found[][2] = {{"receive", "recieve"}, {"the", "teh"},        {"letter", "leter"},
                                           {"letter", "lettter"},  {"cat", "car"},        {"cat", "at"},
                                           {"phone", "fone"},      {"straße", "strasse"}, {"élève", "elève"},
                                           {"élève", "élèves"},    {"a", "as"},           {"independent", "independant"}};
    char typed[NOISE_MOST_BYTES + 1];
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        bool there = false;
        for (uint64_t draw = 0; draw < 200000 && !there; draw++) {
            random_stream stream = random_start(3, i, draw);
            noise_apply(&stream, found[i][0], typed);
            there = strcmp(typed, found[i][1]) == 0;
        }
        ck_assert_msg(there, "%s never becomes %s", found[i][0], found[i][1]);
    }
}
END_TEST

START_TEST(test_noise_of_any_bytes)
{
    char word[WORDS_MOST_BYTES + 1], typed[NOISE_MOST_BYTES + 1];
    for (uint64_t draw = 0; draw < 50000; draw++) {
        random_stream stream = random_start(4, 0, draw), bytes = random_start(4, 1, draw);
        size_t length = random_next(&bytes) % (WORDS_MOST_BYTES + 1);
        for (size_t i = 0; i < length; i++)
            word[i] = (char)(1 + random_next(&bytes) % 255);
        word[length] = '\0';
        memset(typed, 'x', sizeof typed); /* of the last word it has a 0 */
        noise_apply(&stream, word, typed);
        ck_assert(memchr(typed, 0, sizeof typed) != NULL);
        ck_assert_msg(length == 0 || typed[0] != '\0', "a word of %zu bytes became empty", length);
    }
}
END_TEST

/* ---- pairs ---- */

#define DICTIONARY "ab 1\nbb 0\nca 9\ncb 4\nda 0\n"

START_TEST(test_chances)
{
    words *dictionary = open_words(DICTIONARY);
    pairs *of = pairs_create(dictionary, 0.25, 0.5, 7);
    ck_assert(of != NULL);
    double expected[5] = {0.05 + 0.75 * 1 / 6, 0.05, 0.05 + 0.75 * 3 / 6, 0.05 + 0.75 * 2 / 6, 0.05};
    int64_t drawn[5] = {0}, draws = 40000;
    for (int64_t i = 0; i < draws; i++)
        drawn[pairs_draw_class(of, 1, 0, i)]++;
    for (int64_t i = 0; i < 5; i++) {
        ck_assert_double_eq_tol(pairs_chance(of, i), expected[i], 1e-12);
        ck_assert_double_eq_tol((double)drawn[i] / (double)draws, expected[i], 0.01); /* 4 standard deviations */
    }
    pairs_destroy(of);
    words_close(dictionary);
}
END_TEST

/* A pair is that of its index, whichever were drawn before; epochs and seeds have others. */
START_TEST(test_pairs_by_index)
{
    words *dictionary = open_words(DICTIONARY);
    pairs *of = pairs_create(dictionary, 0.5, 0.5, 7), *other = pairs_create(dictionary, 0.5, 0.5, 8);
    pair forward[64], drawn;
    int different[2] = {0};
    for (int64_t i = 0; i < 64; i++)
        pairs_draw(of, 1, 3, i, &forward[i]);
    for (int64_t i = 63; i >= 0; i--) {
        pairs_draw(of, 1, 3, i, &drawn);
        ck_assert(drawn.class == forward[i].class && strcmp(drawn.typed, forward[i].typed) == 0);
        ck_assert_int_eq(pairs_draw_class(of, 1, 3, i), drawn.class);
        pairs_draw(of, 1, 4, i, &drawn);
        different[0] += drawn.class != forward[i].class;
        pairs_draw(other, 1, 3, i, &drawn);
        different[1] += drawn.class != forward[i].class;
    }
    ck_assert_msg(different[0] > 20 && different[1] > 20, "%d and %d of 64 differ", different[0], different[1]);
    pairs_destroy(of);
    pairs_destroy(other);
    words_close(dictionary);
}
END_TEST

/* Runs of 3: a class between its neighbours, in turns by first and last bytes; beyond the ends the first or last word again. */
START_TEST(test_neighbours)
{
    static const int64_t by_end[5] = {2, 4, 0, 1, 3}; /* ca da ab bb cb */
    words *dictionary = open_words(DICTIONARY);
    pairs *of = pairs_create(dictionary, 1, 1, 7);
    for (int64_t run = 0; run < 100; run++) {
        int64_t place[3];
        for (int64_t i = 0; i < 3; i++) {
            int64_t class = pairs_draw_class(of, 3, 0, 3 * run + i);
            for (place[i] = 0; run % 2 == 1 && by_end[place[i]] != class; place[i]++)
                continue;
            if (run % 2 == 0)
                place[i] = class;
        }
        ck_assert_int_eq(place[0], place[1] > 0 ? place[1] - 1 : 0);
        ck_assert_int_eq(place[2], place[1] < 4 ? place[1] + 1 : 4);
    }
    pairs_destroy(of);
    words_close(dictionary);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spell");
    TCase *files = test_case(suite, "files"), *features = test_case(suite, "features"), *drawing = test_case(suite, "drawing");
    tcase_add_test(files, test_accepts);
    tcase_add_loop_test(files, test_hash, 0, 4);
    tcase_add_loop_test(files, test_refuses, 0, sizeof bad / sizeof *bad);
    tcase_add_loop_test(files, test_refuses_tests, 0, 4);
    tcase_add_test(files, test_refuses_other_files);
    tcase_add_test(files, test_refuses_a_long_line);
    tcase_add_test(features, test_ngrams);
    tcase_add_test(features, test_ngrams_of_long_words);
    tcase_add_test(drawing, test_noise);
    tcase_add_test(drawing, test_noise_kinds);
    tcase_add_test(drawing, test_noise_of_any_bytes);
    tcase_add_test(drawing, test_chances);
    tcase_add_test(drawing, test_pairs_by_index);
    tcase_add_test(drawing, test_neighbours);
    scratch_open();
    int code = test_run(suite);
    scratch_close();
    return code;
}
