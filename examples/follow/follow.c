/* Pins its threads to the exclusive CPUs of its container, and follows when these change:
 *     cc -O2 -pthread -o follow follow.c && ./follow [THREADS]
 *
 * Linux only. docs/how-to/follow-your-cpus.md says what the files are. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

static char folder[3072], now[4096];

static void *spin(void *unused) {
    for (volatile unsigned long count = 0;; count++) {} /* the application's own work */
    return unused;
}

static int slurp(int data, const char *name, char *text, size_t size) {
    int file = openat(data, name, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
    close(file);
    text[length < 0 ? 0 : length] = 0;
    return length < 0 ? -1 : 0;
}

static int parse(const char *list, int *cpus, int most) { /* "2-3,8": the kernel's list format */
    int count = 0;
    while (*list) {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (; first <= last && count < most; first++)
            cpus[count++] = first;
        if (*end != ',')
            break;
        list = end + 1;
    }
    return count;
}

static void follow(void) {
    static int cpus[CPU_SETSIZE];
    static char list[8192], json[65536], path[4096];
    int data = open(now, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* all files of one moment */
    int whole = !slurp(data, "assigned.cpuset", list, sizeof list) &&
                !slurp(data, "assignment.json", json, sizeof json);
    close(data);
    char *field = whole ? strstr(json, "\"generation\":") : NULL;
    if (!field)
        return; /* they were replaced meanwhile: the next event is on its way */
    long generation = strtol(field + 13, NULL, 10);
    int count = parse(list, cpus, CPU_SETSIZE), at = 0;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *one; count && threads && (one = readdir(threads));) {
        int thread = atoi(one->d_name);
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[at % count], &set);
        if (thread && at++ >= 0 && sched_setaffinity(thread, sizeof set, &set))
            perror("sched_setaffinity");
    }
    if (threads)
        closedir(threads);
    printf("generation %ld: CPUs %s\n", generation, list);
    fflush(stdout);
    snprintf(path, sizeof path, "%s/ack/generation", folder);
    int word = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC); /* in place: it is the agent's file */
    if (word < 0 || dprintf(word, "%ld\n", generation) < 0)
        perror(path);
    close(word);
}

int main(int count, char **words) {
    const char *told = getenv("PINFOLD_ASSIGNMENT_DIR");
    char *end = "", events[4096];
    long left = count > 1 ? strtol(words[1], &end, 10) : 2;
    if (count > 2 || *end || left < 0)
        return fprintf(stderr, "usage: %s [THREADS]\n", words[0]), 2;
    snprintf(folder, sizeof folder, "%s", told ? told : "/run/pinfold");
    snprintf(now, sizeof now, "%s/..data", folder);
    if (access(now, F_OK))
        return fprintf(stderr, "no exclusive CPUs here: no folder %s\n", now), 1;
    int news = inotify_init1(IN_CLOEXEC);
    if (news < 0 || inotify_add_watch(news, folder, IN_MOVED_TO) < 0)
        return perror(folder), 1;
    pthread_t thread;
    for (; left > 0; left--)
        if (pthread_create(&thread, NULL, spin, NULL))
            return perror("pthread_create"), 1;
    do /* watched first, so that nothing is missed */
        follow();
    while (read(news, events, sizeof events) > 0);
}
