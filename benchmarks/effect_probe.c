/* The probe of the benchmarks of the agent: what a process feels of where it runs.
 *
 *     probe stamp FILE            the monotonic clock (ns) at the first instruction of main, then sleep
 *     probe wake SECONDS FILE     how late a 1 ms timer wakes
 *     probe spin SECONDS FILE     which share of the time a busy loop gets
 *     probe hog                   a busy loop for ever
 *
 * FILE appears whole (written beside, renamed) and is one line of JSON. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define PERIOD 1000000LL
#define GAP 20000LL /* a step of the clock longer than this was not ours */

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

static int wake(long long duration, const char *file) {
  long long most = duration / PERIOD + 10, count = 0, start = now(), due = start;
  long long *late = calloc((size_t)most, sizeof *late);
  if (!late) return 1;
  while (count < most && due - start < duration) {
    due += PERIOD;
    long long before = now();
    if (due <= before) due = before + PERIOD; /* missed periods are one late wake-up, not many */
    struct timespec at = {due / SECOND, due % SECOND};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    late[count++] = now() - due;
  }
  qsort(late, (size_t)count, sizeof *late, ascending);
  char text[256];
  snprintf(text, sizeof text,
           "{\"samples\": %lld, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"max_us\": %.1f, \"cpu_s\": %.4f}\n",
           count, late[count / 2] / 1e3, late[count * 99 / 100] / 1e3,
           late[count * 999 / 1000] / 1e3, late[count - 1] / 1e3, used());
  return answer(file, text);
}

static int spin(long long duration, const char *file) {
  long long start = now(), last = start, at = start, lost = 0, longest = 0;
  while (at - start < duration) {
    at = now();
    long long step = at - last;
    if (step > GAP) lost += step;
    if (step > longest) longest = step;
    last = at;
  }
  char text[128];
  snprintf(text, sizeof text, "{\"share_percent\": %.3f, \"longest_gap_us\": %.1f, \"cpu_s\": %.4f}\n",
           100.0 * (double)(at - start - lost) / (double)(at - start), longest / 1e3, used());
  return answer(file, text);
}

int main(int count, char **word) {
  long long began = now();
  if (count == 2 && !strcmp(word[1], "hog"))
    for (volatile unsigned long work = 0;; work++) continue;
  if (count == 3 && !strcmp(word[1], "stamp")) {
    char text[64];
    snprintf(text, sizeof text, "{\"at_ns\": %lld}\n", began);
    if (answer(word[2], text)) return 1;
    for (;;) pause();
  }
  if (count == 4 && !strcmp(word[1], "wake")) return wake((long long)(atof(word[2]) * SECOND), word[3]);
  if (count == 4 && !strcmp(word[1], "spin")) return spin((long long)(atof(word[2]) * SECOND), word[3]);
  fputs("usage: probe stamp FILE | wake SECONDS FILE | spin SECONDS FILE | hog\n", stderr);
  return 2;
}
