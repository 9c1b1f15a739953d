/*
 * shardrun: starts the ranks of a job on this machine. Makes the segment over
 * which they communicate, gives each its number in its environment, passes signals on,
 * and, when one fails, gives the others a moment to say so and ends them.
 *
 * A rank may be a script that starts the program. So signals go to all descendants of
 * shardrun, which adopts those whose parents end (PR_SET_CHILD_SUBREAPER). Ranks stay in
 * shardrun's process group, so that a terminal's signals and input reach them.
 */
#include "clock.h"
#include "descendants.h"
#include "outputs.h"

#include "base/cores.h"
#include "comm/shm/segment.h"

#include <shard/base.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds for ranks to end by themselves after one has failed, and from SIGTERM to SIGKILL. After a signal they may
 * have a checkpoint to save, and so have as long as for any other wait: SHARD_TIMEOUT. */
#define GRACE_AFTER_FAILURE 2.0
#define GRACE_AFTER_TERM 3.0

/* A signal that comes sooner after the first counts as the same one, sent to a whole group of processes. */
#define SAME_SIGNAL 0.5

#define EXIT_USAGE 2
#define EXIT_CANNOT_RUN 126
#define EXIT_NOT_FOUND 127

static const char usage[] = "Usage: shardrun -n N [--tag] [--] PROGRAM [ARGUMENT ...]\n"
                            "\n"
                            "Starts N ranks of PROGRAM on this machine. Each finds RANK, LOCAL_RANK, WORLD_SIZE,\n"
                            "LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and OMP_NUM_THREADS (cores / N, unless it is\n"
                            "set) in its environment. If a rank fails, the others are ended, and shardrun exits with\n"
                            "its exit code, or 128 + its signal. SIGINT, SIGTERM and SIGHUP are passed on; ranks that\n"
                            "then do not end within SHARD_TIMEOUT seconds (600) are killed, by a second signal at once.\n"
                            "SIGUSR1 and SIGUSR2 are passed on, too, and end nothing by themselves.\n"
                            "Where some ranks have ended well, the others have SHARD_TIMEOUT seconds to come to\n"
                            "shard_finalize; after it they may take as long as they like.\n"
                            "Signals go to all processes that a rank has started. Where all ranks end well, what they\n"
                            "leave in the background goes on, unless it takes part in the job.\n"
                            "\n"
                            "  -n, --ranks N   how many ranks, 1 to 256\n"
                            "      --tag       begin each line of output with its rank. Lines of more than 16 MiB are\n"
                            "                  passed on as several lines\n"
                            "  -h, --help      this text\n";

typedef struct rank {
    pid_t process;     /* 0 when it has ended */
    stream streams[2]; /* with --tag: of standard output and standard error */
} rank;

static struct job {
    int size, left; /* all ranks, and those that have not ended */
    bool tag;
    char **command;
    rank *ranks;
    process_list strangers; /* descendants before the first rank was started */
    shard_segment *segment;
    int file;        /* the segment's */
    int exit_code;   /* of the first rank that failed */
    double timeout;  /* SHARD_TIMEOUT */
    double asked_at; /* when a signal was first passed on; 0: never */
    double leave_by; /* the time at which ranks that have not ended are given up, as others have ended well; 0: none have */
    double end_at;   /* the time of the next signal; 0: none */
    int next_signal; /* SIGTERM, then SIGKILL */
    bool ending;     /* one has been sent */
    bool gone;       /* no process is left to end */
    bool drains;     /* nothing is running, and what was written by then is passed on */
} job;

/* Signals whose action is another in shardrun, and the one before, which ranks inherit. */
static struct changed_signal {
    int number;
    void (*handler)(int);
    struct sigaction before;
} changed_signals[] = {
    {.number = SIGXFSZ, .handler = SIG_IGN}, /* beyond ulimit -f, calls shall fail, not end shardrun */
    {.number = SIGPIPE, .handler = SIG_IGN}, /* so without a reader of the output: that is for ranks to see */
    {.number = SIGCHLD, .handler = SIG_DFL}, /* if it is ignored, no signal says that a rank has ended */
};
#define CHANGED_SIGNALS (sizeof changed_signals / sizeof *changed_signals)

_Noreturn static void fail(const char *what)
{
    fprintf(stderr, "shardrun: %s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

/* An argument, for a message. */
static const char *printable(const char *text)
{
    static char line[PATH_MAX];
    return shard_printable(line, sizeof line, text);
}

/* A port without a listener; 0 where there is no 127.0.0.1. */
static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int socket_file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_file < 0)
        return 0;
    bool found = bind(socket_file, (struct sockaddr *)&address, length) == 0 &&
                 getsockname(socket_file, (struct sockaddr *)&address, &length) == 0;
    close(socket_file);
    return found ? ntohs(address.sin_port) : 0;
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void set_common_environment(void)
{
    int threads = shard_count_cores() / job.size, port = free_port();
    const char *given = getenv("OMP_NUM_THREADS");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    if (port)
        set_number("MASTER_PORT", port);
    else
        unsetenv("MASTER_PORT"); /* for programs' own use: libshard needs none */
    if (!given || !*given)
        set_number("OMP_NUM_THREADS", threads > 1 ? threads : 1);
}

/* Ranks report a value that is not a number. */
static double timeout_seconds(void)
{
    const char *text = getenv("SHARD_TIMEOUT");
    double seconds = text ? strtod(text, NULL) : 0;
    return seconds > 0 ? seconds : 600;
}

/* -1: no signal. */
static int rank_of(pid_t process)
{
    for (int i = 0; i < job.size; i++)
        if (job.ranks[i].process == process)
            return i;
    return -1;
}

/* A terminal sends its signals to shardrun's process group itself: processes of another one, as of timeout, have none yet. */
static void signal_one(pid_t process, int number, bool from_terminal)
{
    if (!from_terminal || getpgid(process) != getpgrp())
        kill(process, number);
    if (number != SIGKILL)
        kill(process, SIGCONT); /* a stopped process would not handle it */
}

/* Sends the signal to the ranks and their descendants. */
static void signal_ranks(int number, bool from_terminal)
{
    process_list others = find_descendants(&job.strangers);
    for (int i = 0; i < job.size; i++)
        if (job.ranks[i].process)
            signal_one(job.ranks[i].process, number, from_terminal);
    for (int i = 0; i < others.count; i++)
        if (rank_of(others.ids[i]) < 0)
            signal_one(others.ids[i], number, from_terminal);
    free(others.ids);
}

static int count_descendants(void)
{
    process_list all = find_descendants(&job.strangers);
    free(all.ids);
    return all.count;
}

/* Whether there is a process to wait for: a rank; if the job has failed or is to end, also a descendant that is
 * left. */
static bool is_running(void)
{
    if (job.left > 0 || job.gone)
        return job.left > 0;
    bool may_go_on = job.exit_code == 0 && job.asked_at == 0; /* without shardrun */
    job.gone = !may_go_on && count_descendants() == 0;
    return !may_go_on && !job.gone;
}

_Noreturn static void become_rank(int number, pid_t launcher, const int *pipes, const sigset_t *mask)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(EXIT_FAILURE);
    for (int i = 0; i < 2; i++)
        if (job.tag)
            dup2(pipes[i], STDOUT_FILENO + i);
    int nothing = number > 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    for (size_t i = 0; i < CHANGED_SIGNALS; i++)
        sigaction(changed_signals[i].number, &changed_signals[i].before, NULL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    shard_segment_set_environment(job.file, number, job.size);
    execvp(job.command[0], job.command);
    int error = errno;
    if (number == 0)
        fprintf(stderr, "shardrun: cannot run %s: %s\n", printable(job.command[0]), strerror(error));
    _exit(error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN);
}

/* Ends the ranks before `number` and all that they have started: a rank that is a script may have started its program.
 * Closes their pipes first, since no file may be left with which to read /proc. Looks again for processes, since a
 * rank may start one meanwhile. */
_Noreturn static void fail_to_start(int number, const char *what)
{
    int error = errno;
    double give_up_at = now() + GRACE_AFTER_TERM;
    for (int i = 0; i < 2 * number; i++)
        stream_close(&job.ranks[i / 2].streams[i % 2]);
    do
        signal_ranks(SIGKILL, false);
    while (count_descendants() > 0 && now() < give_up_at);
    errno = error;
    fail(what);
}

static void start_rank(int number, const sigset_t *mask)
{
    rank *new = &job.ranks[number];
    int pipes[2] = {-1, -1}; /* the rank's ends */
    for (int i = 0; i < 2; i++) {
        int ends[2] = {-1, -1};
        if (job.tag && pipe2(ends, O_CLOEXEC) != 0)
            fail_to_start(number, errno == EMFILE ? "no pipe for the output of a rank, which ulimit -n limits" : "no pipe");
        new->streams[i].from = -1;
        if (job.tag && !stream_open(&new->streams[i], number, ends[0], STDOUT_FILENO + i))
            fail_to_start(number, "no memory");
        pipes[i] = ends[1];
    }
    pid_t launcher = getpid();
    new->process = fork();
    if (new->process == 0)
        become_rank(number, launcher, pipes, mask);
    if (new->process < 0) {
        new->process = 0;
        fail_to_start(number, "cannot start a rank");
    }
    job.left++;
    for (int i = 0; i < 2; i++)
        if (job.tag)
            close(pipes[i]);
}

static void end_ranks_after(double seconds)
{
    job.next_signal = SIGTERM;
    job.end_at = now() + seconds;
}

/* Whether the rank has ever been in the world of this job. */
static bool has_joined(int number)
{
    uint32_t state = atomic_load(&job.segment->ranks[number].state);
    return state != SHARD_RANK_ABSENT && state != SHARD_RANK_CALLED;
}

/* A rank that joined has failed, perhaps as it waited in vain for others that had ended with exit code 0. */
static void report_missing_ranks(int failed)
{
    for (int i = 0; i < job.size && has_joined(failed); i++)
        if (!job.ranks[i].process && !has_joined(i))
            say("shardrun: rank %d ended before it joined the others\n", i);
}

/* The consequence of a rank's end: the first failure sets the job's exit code. */
static void report_failure(int number, int status)
{
    if (job.exit_code)
        return;
    if (job.asked_at == 0)
        report_missing_ranks(number);
    job.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (job.asked_at == 0 && WIFSIGNALED(status))
        say("shardrun: rank %d was killed by signal %d (%s)\n", number, WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (job.asked_at == 0)
        say("shardrun: rank %d ended with exit code %d\n", number, WEXITSTATUS(status));
    if (job.end_at == 0)
        end_ranks_after(GRACE_AFTER_FAILURE);
}

static void fail_without_leaving(int number)
{
    say("shardrun: rank %d ended with exit code 0, but without shard_finalize\n", number);
    job.exit_code = EXIT_FAILURE;
    if (job.end_at == 0)
        end_ranks_after(GRACE_AFTER_FAILURE);
}

/* A single rank may leave out shard_finalize: no rank waits for it. */
static void take_good_end(int number)
{
    uint32_t state = atomic_load(&job.segment->ranks[number].state);
    if ((state == SHARD_RANK_JOINED || state == SHARD_RANK_LEAVING) && job.size > 1 && !job.exit_code)
        fail_without_leaving(number);
    if (state == SHARD_RANK_LEFT)
        job.leave_by = now() + job.timeout;
}

/* Ranks that ended together: one that was killed is more likely the cause than those that then failed, in whatever
 * order they are found. */
static void reap(void)
{
    int failed = -1, failed_status = 0, status;
    bool good[SHARD_SEGMENT_RANKS] = {false};
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;) {
        int i = rank_of(ended);
        if (i < 0)
            continue;
        job.ranks[i].process = 0;
        job.left--;
        atomic_store(&job.segment->ranks[i].ended, 1);
        good[i] = status == 0;
        if (status != 0 && (failed < 0 || (WIFSIGNALED(status) && !WIFSIGNALED(failed_status)))) {
            failed = i;
            failed_status = status;
        }
    }
    if (failed >= 0)
        report_failure(failed, failed_status);
    for (int i = 0; i < job.size; i++)
        if (good[i])
            take_good_end(i);
}

/* A rank that stops or hangs after the last collective is ended by nothing else. */
static void give_up_late_ranks(void)
{
    if (job.leave_by == 0 || job.end_at > 0 || now() < job.leave_by)
        return;
    job.leave_by = 0;
    for (int i = 0; i < job.size; i++) {
        uint32_t state = atomic_load(&job.segment->ranks[i].state);
        if (!job.ranks[i].process || (state != SHARD_RANK_JOINED && state != SHARD_RANK_LEAVING))
            continue;
        say("shardrun: rank %d did not come to the end of shard_finalize within %.0f s (SHARD_TIMEOUT) after others had ended\n",
            i, job.timeout);
        job.exit_code = EXIT_FAILURE;
    }
    if (job.exit_code)
        end_ranks_after(0);
}

/* For a signal when all ranks have ended, and what they have written waits for its reader. */
static void end_without_output(int exit_code)
{
    outputs_give_up();
    if (job.exit_code == 0)
        job.exit_code = exit_code;
}

static void take_signal(int signals)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) != sizeof info)
        return;
    bool same = job.asked_at > 0 && now() <= job.asked_at + SAME_SIGNAL;
    if (info.ssi_signo == SIGCHLD) {
        reap();
        return;
    }
    if (info.ssi_signo == SIGUSR1 || info.ssi_signo == SIGUSR2) {
        if (job.left > 0)
            signal_ranks((int)info.ssi_signo, false);
        return;
    }
    if (!is_running()) {
        if (!same)
            end_without_output(128 + (int)info.ssi_signo);
        return;
    }
    if (job.asked_at > 0 && !same) {
        job.next_signal = SIGKILL;
        job.end_at = now();
        return;
    }
    if (job.asked_at == 0)
        job.asked_at = now();
    if (job.end_at == 0)
        end_ranks_after(job.timeout);
    signal_ranks((int)info.ssi_signo, info.ssi_code == SI_KERNEL);
}

static void end_ranks_in_time(void)
{
    if (job.end_at == 0 || now() < job.end_at || !is_running())
        return;
    if (!job.ending && job.left > 0)
        say("shardrun: ending %d rank%s\n", job.left, job.left == 1 ? "" : "s");
    else if (!job.ending)
        say("shardrun: ending what ranks have left running\n");
    job.ending = true;
    signal_ranks(job.next_signal, false);
    job.next_signal = SIGKILL;
    job.end_at = now() + GRACE_AFTER_TERM;
}

/* Milliseconds until the time to end ranks, as far as an int has them; -1: there is none. Without ranks, output is waited for as
 * long as its reader takes, but after a signal not much longer. */
static int time_to_wait(bool running)
{
    if (!running)
        return !outputs_wait() ? 0 : job.asked_at > 0 ? (int)(1000 * GRACE_AFTER_TERM) : -1;
    double next = job.end_at > 0 ? job.end_at : job.leave_by, rest = next - now();
    if (next == 0)
        return -1;
    return rest <= 0 ? 0 : rest * 1000 < INT_MAX ? (int)(rest * 1000) + 1 : INT_MAX;
}

/* Waits for signals, ranks' output, room for it and the time to end ranks. True while there is more to wait for: ranks, or
 * output of theirs. */
static bool watch(int signals, struct pollfd *files)
{
    int number = 0, streams = job.tag ? 2 * job.size : 0; /* poll takes no more files than may be open, which ulimit -n limits */
    bool running = is_running();
    for (int i = 0; i < streams && !running && !job.drains; i++)
        stream_end(&job.ranks[i / 2].streams[i % 2]);
    job.drains = !running;
    files[number++] = (struct pollfd){.fd = signals, .events = POLLIN};
    for (int i = 0; i < 2; i++)
        files[number++] = output_poll(i);
    for (int i = 0; i < streams; i++)
        files[number++] = stream_poll(&job.ranks[i / 2].streams[i % 2]);
    int ready = poll(files, (nfds_t)number, time_to_wait(running));
    if (ready < 0 && errno != EINTR)
        fail("poll");
    if (ready == 0 && !running && outputs_wait())
        outputs_give_up();
    for (int i = 0; i < 2 && ready > 0; i++)
        if (files[1 + i].revents)
            output_write(i);
    for (int i = 0; i < streams && ready > 0; i++)
        if (files[3 + i].revents)
            stream_read(&job.ranks[i / 2].streams[i % 2]);
    if (ready > 0 && files[0].revents)
        take_signal(signals);
    give_up_late_ranks();
    end_ranks_in_time();
    return ready != 0 || outputs_wait() || is_running();
}

static void parse(int count, char **arguments)
{
    static const struct option options[] = {
        {"ranks", required_argument, NULL, 'n'}, {"tag", no_argument, NULL, 't'}, {"help", no_argument, NULL, 'h'}, {0}};
    int option;
    long size = 0;
    while ((option = getopt_long(count, arguments, "+n:h", options, NULL)) != -1) {
        char *end = NULL;
        if (option == 'h') {
            if (fputs(usage, stdout) != EOF && fflush(stdout) == 0)
                exit(EXIT_SUCCESS);
            perror("shardrun: cannot write the help");
            exit(EXIT_FAILURE);
        }
        if (option == 't')
            job.tag = true;
        if (option == 'n')
            size = strtol(optarg, &end, 10);
        if (option == '?' || (option == 'n' && (*end || size < 1 || size > SHARD_SEGMENT_RANKS))) {
            if (option == 'n')
                fprintf(stderr, "shardrun: -n %s: not a number of ranks from 1 to %d\n", printable(optarg), SHARD_SEGMENT_RANKS);
            exit(EXIT_USAGE);
        }
    }
    job.size = (int)size;
    job.command = arguments + optind;
    if (job.size == 0 || !job.command[0]) {
        fprintf(stderr, "shardrun: %s\n%s", job.size ? "which PROGRAM?" : "how many ranks? (-n N)", usage);
        exit(EXIT_USAGE);
    }
}

/* Ranks that never tried to join were N independent programs. */
static void warn_of_loners(void)
{
    for (int i = 0; i < job.size; i++)
        if (atomic_load(&job.segment->ranks[i].state) != SHARD_RANK_ABSENT)
            return;
    if (job.size > 1 && job.exit_code == 0)
        say("shardrun: none of the %d ranks called shard_init or shard_init_with: they were %d programs of one rank each\n",
            job.size, job.size);
}

static void report_lost_output(void)
{
    if (outputs_error() == 0)
        return;
    say("shardrun: output that could not be written is lost: %s\n", strerror(outputs_error()));
    job.exit_code = job.exit_code ? job.exit_code : EXIT_FAILURE;
}

/* Signals that the caller ignores, as nohup does SIGHUP, stay ignored. */
static void choose_signals(sigset_t *taken)
{
    static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    struct sigaction action;
    sigemptyset(taken);
    sigaddset(taken, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        if (sigaction(passed_on[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(taken, passed_on[i]);
}

/* Files that are opened later must not take the numbers of standard files that the caller has closed. Ranks do not inherit
 * these, and a write to one fails. */
static void fill_standard_files(void)
{
    int file;
    do
        file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    while (file >= 0 && file <= STDERR_FILENO);
    if (file >= 0)
        close(file);
}

int main(int count, char **arguments)
{
    fill_standard_files();
    parse(count, arguments);
    for (size_t i = 0; i < CHANGED_SIGNALS; i++) {
        struct changed_signal *s = &changed_signals[i];
        sigaction(s->number, &(struct sigaction){.sa_handler = s->handler}, &s->before);
    }
    job.file = shard_segment_create(job.size, &job.segment);
    if (job.file < 0)
        fail(errno == EFBIG ? "no shared memory, which ulimit -f limits, too" : "no shared memory");
    if (shard_segment_make_lifeline(job.segment) != 0)
        fail("no pipe");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    job.strangers = find_descendants(NULL);
    set_common_environment();
    job.timeout = timeout_seconds();
    job.ranks = calloc((size_t)job.size, sizeof *job.ranks);
    struct pollfd *files = calloc(2 * (size_t)job.size + 3, sizeof *files);
    if (!job.ranks || !files)
        fail("no memory");
    sigset_t taken, before;
    choose_signals(&taken);
    sigprocmask(SIG_BLOCK, &taken, &before);
    int signals = signalfd(-1, &taken, SFD_CLOEXEC);
    if (signals < 0)
        fail("no signalfd");
    for (int i = 0; i < job.size; i++)
        start_rank(i, &before);
    outputs_open();
    while (watch(signals, files))
        ;
    warn_of_loners();
    report_lost_output();
    while (watch(signals, files))
        ;
    for (int i = 0; i < 2 * job.size; i++)
        stream_close(&job.ranks[i / 2].streams[i % 2]);
    outputs_close();
    free(files);
    free(job.ranks);
    free(job.strangers.ids);
    shard_segment_close(job.segment, job.file);
    return job.exit_code;
}
