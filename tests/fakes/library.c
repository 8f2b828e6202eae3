/* The body of every function of a fake library: look for the last rule of the program that matches the call, do what
   it says. Pointers and integers travel in registers, so one prototype with six words serves every function that takes
   no number with a decimal point. The program is a text file beside a shared page of counters, both in the folder that
   EKVI_FAKES names; the page's first word counts the program's versions, so a changed program is read at the next call,
   also by a call that is blocking. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE_WORDS 8192
#define MOST 8
typedef struct { unsigned n; unsigned size; unsigned char **frames; } series;
typedef struct { int arg; long offset; int size; uint64_t value; } where;
typedef struct { int arg; series s; } out;
typedef struct { int any; uint64_t key; series s; } entry;
typedef struct { int arg; long offset, stride; int count_arg; long count_offset, key_offset, at; unsigned n; entry *entries; } each;
typedef struct rule {
  unsigned slot, symbol; int status, sig, loop; uint64_t delay_us, after, every_us, start_ns; char *say; char *text;
  unsigned nw, no; where w[MOST]; out o[MOST]; each e; struct rule *older;
} rule;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static volatile uint64_t *page; static uint64_t blank[PAGE_WORDS]; static uint64_t seen; static char program[4096];
static rule *newest[SYMBOLS];

static unsigned char *unhex(const char *t, unsigned *n) {
  *n = strlen(t) / 2; unsigned char *p = malloc(*n + 1); p[*n] = 0;
  for (unsigned i = 0; i < *n; i++) { unsigned v; sscanf(t + 2 * i, "%2x", &v); p[i] = v; }
  return p; }
static char *word(char **at) { char *w; do w = strsep(at, " \n"); while (w && !*w); return w ? w : ""; }
static uint64_t u(char **at) { return strtoull(word(at), 0, 0); }
static long l(char **at) { return strtol(word(at), 0, 0); }
static char *text(char **at) { char *w = word(at); unsigned n; return *w == '-' ? 0 : (char *)unhex(w, &n); }
static series frames(char **at) {
  series s = {l(at), 0, 0}; s.frames = calloc(s.n, sizeof(char *));
  for (unsigned i = 0; i < s.n; i++) s.frames[i] = unhex(word(at), &s.size);
  return s; }

/* Rules of a program before are not freed: a call that blocks may still hold one, and tests are short. */
static void load(void) {
  memset(newest, 0, sizeof newest);
  FILE *f = fopen(program, "r"); if (!f) return;
  char *line = 0; size_t room = 0; rule *r = 0;
  while (getline(&line, &room, f) > 0) {
    char *at = line; char *kind = word(&at);
    if (*kind == 'R') {
      r = calloc(1, sizeof *r); r->slot = u(&at); r->symbol = u(&at); r->status = l(&at); r->delay_us = u(&at); r->after = u(&at);
      r->every_us = u(&at); r->start_ns = u(&at); r->loop = l(&at); r->sig = l(&at); r->say = text(&at); r->text = text(&at);
      r->older = newest[r->symbol]; newest[r->symbol] = r; }
    else if (*kind == 'W') { where *w = &r->w[r->nw++]; w->arg = l(&at); w->offset = l(&at); w->size = l(&at); w->value = u(&at); }
    else if (*kind == 'O') { out *o = &r->o[r->no++]; o->arg = l(&at); o->s = frames(&at); }
    else if (*kind == 'E') {
      each *e = &r->e; e->arg = l(&at); e->offset = l(&at); e->stride = l(&at); e->count_arg = l(&at); e->count_offset = l(&at);
      e->key_offset = l(&at); e->at = l(&at); e->entries = calloc(u(&at), sizeof(entry)); }
    else if (*kind == 'K') { entry *k = &r->e.entries[r->e.n++]; char *w = word(&at); k->any = *w == '*'; k->key = strtoull(w, 0, 0); k->s = frames(&at); } }
  free(line); fclose(f); }

static void attach(void) {
  const char *folder = getenv("EKVI_FAKES"); char path[4096]; int fd = -1;
  if (folder) {
    snprintf(program, sizeof program, "%s/%s.program", folder, SONAME);
    snprintf(path, sizeof path, "%s/%s.page", folder, SONAME);
    fd = open(path, O_RDWR | O_CLOEXEC); }
  void *m = fd < 0 ? MAP_FAILED : mmap(0, PAGE_WORDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  page = m == MAP_FAILED ? blank : m; }

static uint64_t word_at(const uint64_t *a, int arg, long offset, int size) {
  uint64_t v = 0; if (offset < 0) v = a[arg]; else if (a[arg]) memcpy(&v, (char *)a[arg] + offset, size);
  return size >= 8 ? v : v & ((1ull << (8 * size)) - 1); }
static rule *match(unsigned symbol, const uint64_t *a, uint64_t before) {
  if (page[0] != seen) { seen = page[0]; load(); }
  for (rule *r = newest[symbol]; r; r = r->older) {
    unsigned i = 0; while (i < r->nw && word_at(a, r->w[i].arg, r->w[i].offset, r->w[i].size) == r->w[i].value) i++;
    if (i == r->nw && before >= r->after) return r; }
  return 0; }
static uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void copy(const rule *r, const series *s, uint64_t count, char *to) {
  if (!s->n || !to) return;
  uint64_t k = r->every_us ? (now_ns() - r->start_ns) / 1000 / r->every_us : count;
  memcpy(to, s->frames[r->loop ? k % s->n : k < s->n ? k : s->n - 1], s->size); }
static void apply(const rule *r, const uint64_t *a, uint64_t count) {
  for (unsigned i = 0; i < r->no; i++) copy(r, &r->o[i].s, count, (char *)a[r->o[i].arg]);
  const each *e = &r->e; if (!e->n || !a[e->arg]) return;
  uint64_t items = word_at(a, e->count_arg, e->count_offset, 4);
  for (uint64_t i = 0; i < items; i++) {
    char *item = (char *)a[e->arg] + e->offset + i * e->stride; uint32_t key; memcpy(&key, item + e->key_offset, 4);
    for (unsigned j = e->n; j-- > 0;) if (e->entries[j].any || e->entries[j].key == key) { copy(r, &e->entries[j].s, count, item + e->at); break; } } }

static uint64_t call(unsigned symbol, const uint64_t *a) {
  pthread_mutex_lock(&mu);
  if (!page) attach();
  uint64_t before = __atomic_fetch_add(&page[1 + symbol], 1, __ATOMIC_RELAXED), begun = now_ns();
  rule *r = match(symbol, a, before);
  while (r && now_ns() - begun < r->delay_us * 1000) { /* in slices: a changed program ends the wait */
    uint64_t left = r->delay_us - (now_ns() - begun) / 1000; pthread_mutex_unlock(&mu);
    usleep(left < 5000 ? left : 5000); pthread_mutex_lock(&mu); r = match(symbol, a, before); }
  uint64_t answer = DEFAULT;
  if (r) {
    if (r->say && write(1, r->say, strlen(r->say)) < 0) abort();
    if (r->sig) { signal(r->sig, SIG_DFL); raise(r->sig); }
    apply(r, a, __atomic_fetch_add(&page[r->slot], 1, __ATOMIC_RELAXED));
    answer = r->text ? (uint64_t)r->text : (uint64_t)r->status; }
  pthread_mutex_unlock(&mu); return answer; }
#define F(name, n) uint64_t name(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) { uint64_t v[6] = {a, b, c, d, e, f}; return call(n, v); }
