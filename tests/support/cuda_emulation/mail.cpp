#include "mail.h"

#include <atomic>
#include <map>
#include <stdio.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace emulation {

struct Letter {
    std::atomic<int32_t> unread; /* by so many; 0: this place is free */
    int32_t to;
    uint64_t number;
    int32_t file;
    uint64_t head, bytes; /* head, then data */
    std::atomic<uint64_t> readers; /* a bit for each that has */
};

struct Member {
    std::atomic<int32_t> process; /* 0: has not joined */
    std::atomic<bool> left;       /* has destroyed its Mail */
    char text[64];
    Letter letters[MOST_LETTERS];
};

struct Control {
    int32_t members;
    Member member[MOST_MEMBERS];
};

static std::string path_of(int process, int file)
{
    return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
}

std::string Mail::create(int members)
{
    int file = memfd_create("nccl", MFD_CLOEXEC); /* open until the process ends: others may still want to join */
    if (file < 0 || ftruncate(file, sizeof(Control)) != 0)
        return "";
    int32_t number = members;
    if (pwrite(file, &number, sizeof number, 0) != sizeof number)
        return "";
    return path_of(getpid(), file);
}

Mail *Mail::join(const std::string &path, int members, int self, const std::string &text)
{
    int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0)
        return nullptr;
    void *memory = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return nullptr;
    auto mail = new Mail;
    mail->control = (Control *)memory;
    mail->self = self;
    for (int &own : mail->files)
        own = -1;
    for (int &process : mail->processes)
        process = -1;
    if (mail->control->members != members && mail->control->members != 0) {
        delete mail;
        return nullptr;
    }
    Member &member = mail->control->member[self];
    snprintf(member.text, sizeof member.text, "%s", text.c_str());
    mail->control->members = members;
    member.process = getpid();
    return mail;
}

Mail::~Mail()
{
    for (int file : files)
        if (file >= 0)
            close(file);
    for (int process : processes)
        if (process >= 0)
            close(process);
    if (control->member[self].process == getpid())
        control->member[self].left = true;
    munmap(control, sizeof *control);
}

std::vector<std::string> Mail::texts() const
{
    std::vector<std::string> all;
    for (int i = 0; i < control->members; i++) {
        if (control->member[i].process == 0)
            return {};
        all.push_back(control->member[i].text);
    }
    return all;
}

bool Mail::all_read()
{
    bool all = true;
    for (int i = 0; i < MOST_LETTERS; i++) {
        if (files[i] < 0)
            continue;
        if (control->member[self].letters[i].unread > 0) {
            all = false;
            continue;
        }
        close(files[i]);
        files[i] = -1;
    }
    return all;
}

/* A process that has ended, also one that nobody has waited for yet: its pidfd can be read. */
int Mail::dead_member()
{
    for (int i = 0; i < control->members; i++) {
        Member &member = control->member[i];
        if (i == self || member.process == 0 || member.left)
            continue;
        if (processes[i] < 0)
            processes[i] = (int)syscall(SYS_pidfd_open, (int)member.process, 0);
        struct pollfd ended = {processes[i], POLLIN, 0};
        bool gone = processes[i] < 0 ? errno == ESRCH : poll(&ended, 1, 0) == 1;
        if (gone && !member.left) /* it may have left since */
            return i;
    }
    return -1;
}

bool Mail::send(int to, uint64_t number, const std::string &head, const void *data, size_t bytes)
{
    all_read();
    int place = 0;
    while (place < MOST_LETTERS && files[place] >= 0)
        place++;
    if (place == MOST_LETTERS)
        return false;
    int file = memfd_create("nccl-letter", MFD_CLOEXEC);
    size_t size = head.size() + bytes;
    if (file < 0 || ftruncate(file, (off_t)(size ? size : 1)) != 0)
        return false;
    char *memory = (char *)mmap(nullptr, size ? size : 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memcpy(memory, head.data(), head.size());
    if (bytes)
        memcpy(memory + head.size(), data, bytes);
    munmap(memory, size ? size : 1);
    files[place] = file;
    Letter &letter = control->member[self].letters[place];
    letter.to = to;
    letter.number = number;
    letter.file = file;
    letter.head = head.size();
    letter.bytes = bytes;
    letter.readers = 0;
    letter.unread = to == EVERYBODY ? control->members : 1;
    return true;
}

bool Mail::read(int from, bool to_everybody, uint64_t number, std::string &head, std::string &data)
{
    Member &member = control->member[from];
    uint64_t bit = (uint64_t)1 << self;
    for (Letter &letter : member.letters) {
        if (letter.unread == 0 || letter.to != (to_everybody ? (int)EVERYBODY : self) || letter.number != number ||
            (letter.readers & bit))
            continue;
        int file = open(path_of(member.process, letter.file).c_str(), O_RDWR | O_CLOEXEC);
        size_t size = letter.head + letter.bytes;
        if (file < 0)
            return false;
        char *memory = (char *)mmap(nullptr, size ? size : 1, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (memory == MAP_FAILED)
            return false;
        head.assign(memory, letter.head);
        data.assign(memory + letter.head, letter.bytes);
        munmap(memory, size ? size : 1);
        letter.readers |= bit;
        letter.unread--;
        return true;
    }
    return false;
}

} // namespace emulation
