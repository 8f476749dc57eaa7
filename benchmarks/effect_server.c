/* The workloads of the benchmark of the effect: a server under open-loop load, and its neighbours.
 *
 *     server serve KIND UNITS MEAN_US WARM SECONDS FILE      answer requests as they come
 *     server churn BUSY_MS IDLE_MS                           a neighbour; IDLE_MS 0: busy for ever
 *     server pulse WAIT SECONDS FILE                         rest, say when it ends, and be busy
 *
 * A request is a walk of UNITS steps through a ring of cache lines in random order: it is slow when
 * somebody else has displaced them.  KIND is "alone", one thread, or "together": two threads, each
 * of which does half of the walk and waits for the other, four times a request.
 *
 * Requests come whether or not the one before is done (open loop), by chance with a fixed seed, so
 * that every run has the same: for 125 ms as many as keep the server busy for 30 % of the time at
 * MEAN_US each, then for 125 ms 70 %.  The latency of each counts from when it was due.
 * FILE appears whole (written beside, renamed) and is one line of JSON. */

#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SEGMENT 0.125
#define LINES 16384 /* of 64 bytes: 1 MiB */
#define TURNS 4

struct line {
  struct line *next;
  char rest[64 - sizeof(struct line *)];
};

static struct line *position;
static uint64_t seed = 88172645463325252ULL;

static uint64_t chance(void) { /* xorshift64: the same numbers in every run */
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed;
}

static struct line *ring(size_t lines) {
  struct line *all = aligned_alloc(64, lines * sizeof *all);
  size_t *order = malloc(lines * sizeof *order);
  if (!all || !order) exit(1);
  for (size_t at = 0; at < lines; at++) order[at] = at;
  for (size_t at = lines - 1; at > 0; at--) {
    size_t other = chance() % (at + 1), held = order[at];
    order[at] = order[other];
    order[other] = held;
  }
  for (size_t at = 0; at < lines; at++) all[order[at]].next = &all[order[(at + 1) % lines]];
  free(order);
  return all;
}

static void walk(long units) {
  struct line *at = position;
  for (long step = 0; step < units; step++) at = at->next;
  position = at;
  __asm__ volatile("" ::"r"(at) : "memory");
}

static long long now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * SECOND + at.tv_nsec;
}

static double used(void) { /* seconds of CPU time of this process */
  struct timespec at;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
  return (double)at.tv_sec + at.tv_nsec / 1e9;
}

static void until(long long due) {
  struct timespec at = {due / SECOND, due % SECOND};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static int ascending(const void *left, const void *right) {
  long long a = *(const long long *)left, b = *(const long long *)right;
  return (a > b) - (a < b);
}

static int answer(const char *file, const char *text) {
  char beside[4096];
  if (snprintf(beside, sizeof beside, "%s.new", file) >= (int)sizeof beside) return 1;
  FILE *out = fopen(beside, "w");
  if (!out || fputs(text, out) < 0 || fclose(out)) return 1;
  return rename(beside, file) != 0;
}

static sem_t asked, answered;
static long part; /* the units of one turn of a thread; 0: one thread does everything */

static void *helper(void *nothing) {
  for (;;) {
    while (sem_wait(&asked)) continue;
    walk(part);
    sem_post(&answered);
  }
  return nothing;
}

static void request(long units) {
  if (!part) {
    walk(units);
    return;
  }
  for (int turn = 0; turn < TURNS; turn++) {
    walk(part);
    sem_post(&asked);
    while (sem_wait(&answered)) continue;
  }
}

static int begin(const char *kind, long units) {
  position = ring(LINES);
  prctl(PR_SET_TIMERSLACK, 1);
  if (!strcmp(kind, "alone")) return 0;
  if (strcmp(kind, "together")) return 1;
  part = units / (2 * TURNS);
  pthread_t thread;
  return sem_init(&asked, 0, 0) || sem_init(&answered, 0, 0) ||
         pthread_create(&thread, NULL, helper, NULL);
}

static int serve(long units, double mean, double warm, double seconds, const char *file) {
  size_t most = (size_t)((warm + seconds) / mean) + 1000, count = 0, served = 0;
  long long *due = malloc(most * sizeof *due), *late = malloc(most * sizeof *late);
  if (!due || !late) return 1;
  for (double at = 0; count < most;) {
    /* The last part of the warming up ends where a segment begins, however long it is. */
    double share = (long)floor((at - warm) / SEGMENT) & 1 ? 0.7 : 0.3;
    double even = (double)((chance() >> 11) + 1) / 9007199254740993.0;
    at -= log(even) * mean / share;
    if (at >= warm + seconds) break;
    due[count++] = (long long)(at * SECOND);
  }
  for (size_t at = 0; at < LINES; at++) position = position->next;
  long long start = now() + SECOND / 100, counts = (long long)(warm * SECOND);
  long long end = counts + (long long)(seconds * SECOND), over = end + (long long)(seconds * SECOND);
  size_t first = count, lost = 0;
  double before = 0, after = 0;
  for (size_t at = 0; at < count; at++) {
    if (due[at] >= counts && first == count) {
      first = at;
      until(start + counts);
      before = after = used();
    }
    if (now() < start + due[at]) until(start + due[at]);
    long long done = now() - start;
    if (done < over) {
      request(units);
      done = now() - start;
    } else if (at >= first) {
      lost++;
    }
    late[at] = done - due[at];
    if (at >= first && done <= end) served++, after = used();
  }
  size_t found = count - first;
  if (!found) return 1;
  qsort(late + first, found, sizeof *late, ascending);
  long long *sorted = late + first;
  char text[320];
  snprintf(text, sizeof text,
           "{\"requests\": %zu, \"lost\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"max_us\": %.1f, \"served_per_s\": %.1f, \"busy_percent\": %.2f, \"cpu_s\": %.4f}\n",
           found, lost, sorted[found / 2] / 1e3, sorted[found * 99 / 100] / 1e3,
           sorted[found * 999 / 1000] / 1e3, sorted[found - 1] / 1e3, (double)served / seconds,
           100.0 * (after - before) / seconds, used());
  if (answer(file, text)) return 1;
  for (;;) pause(); /* what it has used can be read until it is ended */
}

static void churn(long busy, long idle) {
  position = ring(4 * LINES);
  for (;;) {
    /* Between half and one and a half times as long, by chance. */
    long long stop = now() + busy * 1000000 * (long long)(50 + chance() % 101) / 100;
    while (!idle || now() < stop) walk(20000);
    until(now() + idle * 1000000 * (long long)(50 + chance() % 101) / 100);
  }
}

static int pulse(double wait, double seconds, const char *file) {
  until(now() + (long long)(wait * SECOND));
  char text[64];
  long long began = now();
  snprintf(text, sizeof text, "{\"at_ns\": %lld}\n", began);
  if (answer(file, text)) return 1;
  while (now() < began + (long long)(seconds * SECOND)) continue;
  for (;;) pause();
}

int main(int count, char **word) {
  if (count == 4 && !strcmp(word[1], "churn")) churn(atol(word[2]), atol(word[3]));
  if (count == 5 && !strcmp(word[1], "pulse")) return pulse(atof(word[2]), atof(word[3]), word[4]);
  if (count == 8 && !strcmp(word[1], "serve") && !begin(word[2], atol(word[3])))
    return serve(atol(word[3]), atof(word[4]) / 1e6, atof(word[5]), atof(word[6]), word[7]);
  fputs("usage: server serve KIND UNITS MEAN_US WARM SECONDS FILE\n"
        "     | churn BUSY_MS IDLE_MS | pulse WAIT SECONDS FILE\n",
        stderr);
  return 2;
}
