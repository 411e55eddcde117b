/* Streams, events and the work between them.
 *
 * Without VCUDA_LATE work is done when it is asked for. With it, work waits in its stream. A stream that is late does it
 * when something needs it: a host that synchronises, or a stream that waits for an event behind it and is itself needed.
 * A stream that is prompt does it at once, unless it has to wait for a late one. VCUDA_LATE is 0 to 15: its lowest bits say
 * whether the default stream is prompt, and every second of the others in the order of their first work, and the rest.
 * From 8 on late streams go on as well, by chance, whenever something is done. So of two pieces of work that nothing
 * orders, either may come first: whoever forgot a wait reads what was there before, or overwrites what was still to be
 * read.
 *
 * An event is a place in a stream: it has come when the stream has done as much work. */
#define _GNU_SOURCE
#include "vcuda.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { COPY, FILL, KERNEL, WAIT };
struct work {
    enum kind kind;
    int owned, value; /* owned: `from` is a copy of pageable memory that is freed when it has left */
    void *to;
    const void *from;
    size_t bytes; /* of a copy or a fill; of a kernel its token */
    cudaStream_t other; /* WAIT: until this stream has done so much */
    uint64_t place, ticket;
    struct work *next;
};
struct CUstream_st {
    int priority, number, late, busy, asked; /* number: in the order of first work, from 1 */
    pthread_t runner;
    uint64_t queued, done, wanted;
    struct work *first, *last;
};
struct CUevent_st {
    unsigned flags;
    int recorded, asked;
    cudaStream_t stream;
    uint64_t place;
    struct timespec at;
};

enum { MOST_STREAMS = 4096, PATIENCE = 3 };
static struct CUstream_st legacy; /* the default stream, by whatever name */
static cudaStream_t streams[MOST_STREAMS] = {&legacy};
static size_t stream_count = 1;
static uint64_t tickets;
static int numbered, stopped, broken;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static vcuda_kernel kernel;

static cudaStream_t named(cudaStream_t s) { return (uintptr_t)s <= 2 ? &legacy : s; }

static uint64_t seed;
static void draw(cudaStream_t s) { /* whether a stream is late; of two that begin one behind the other both cases come */
    s->late = !(seed >> (s == &legacy ? 0 : 1 + s->number % 2) & 1);
}
static int late(void) {
    static int known = -1;
    if (known < 0) {
        const char *text = getenv("VCUDA_LATE");
        seed = text ? strtoull(text, NULL, 10) : 0;
        draw(&legacy);
        known = text != NULL;
    }
    return known;
}

/* Kernels are Python's and need its lock: who waits for them must not hold it. */
static int (*holds)(void);
static void *(*let_go)(void);
static void (*take)(void *);
static void *without_gil(void) {
    if (!holds) {
        int (*found)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
        let_go = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
        take = (void (*)(void *))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
        if (!found || !let_go || !take) return NULL;
        holds = found;
    }
    return !stopped && holds() ? let_go() : NULL;
}
static void with_gil(void *state) { if (state) take(state); }

static void act(struct work *w) {
    switch (w->kind) {
    case COPY: memmove(w->to, w->from, w->bytes); break;
    case FILL: if (w->value) memset(w->to, w->value, w->bytes); else vcuda_zero(w->to, w->bytes); break;
    case KERNEL: if (!stopped) kernel(w->bytes); break;
    case WAIT: break;
    }
    if (w->owned) free((void *)w->from);
}

/* Do the first work of a stream. Under `order`, which is open while it is done. */
static void step(cudaStream_t s) {
    struct work *w = s->first;
    s->first = w->next;
    if (!s->first) s->last = NULL;
    s->busy = 1;
    s->runner = pthread_self();
    pthread_mutex_unlock(&order);
    act(w);
    free(w);
    pthread_mutex_lock(&order);
    s->busy = 0;
    s->done++;
    pthread_cond_broadcast(&moved);
}

static int willing(cudaStream_t s) { /* whether a stream does its first work now; from a seed of 8 on late ones may, too */
    static uint64_t drawn = 88172645463325252;
    if (!s->late || seed < 8) return !s->late;
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return drawn % 4 == 0;
}

/* Have prompt streams do what they can. Under `order`. */
static void prompt(void) {
    for (int again = 1; again;) {
        again = 0;
        for (size_t i = 0; i < stream_count; i++) {
            cudaStream_t s = streams[i];
            while (s->first && !s->busy && !(s->first->kind == WAIT && s->first->other->done < s->first->place) && willing(s)) {
                step(s);
                again = 1;
            }
        }
    }
}

/* Have a stream do so much, and first what that waits for; prompt ones do what each step makes possible. Under `order`.
 * No, if this thread is within it: a finalizer that runs during a kernel cannot wait for that kernel. */
static int reach(cudaStream_t s, uint64_t place) {
    while (s->done < place) {
        struct work *w = s->first;
        if (s->busy && pthread_equal(s->runner, pthread_self())) return 0;
        if (s->busy) pthread_cond_wait(&moved, &order);
        else if (w->kind != WAIT || w->other->done >= w->place) {
            step(s);
            prompt();
        } else if (!reach(w->other, w->place)) return 0;
    }
    return 1;
}

static void push(cudaStream_t s, struct work one) {
    struct work *w = malloc(sizeof *w);
    *w = one;
    w->next = NULL;
    s = named(s);
    pthread_mutex_lock(&order);
    w->ticket = ++tickets;
    if (!s->number) {
        s->number = ++numbered;
        draw(s);
    }
    if (s->last) s->last->next = w; else s->first = w;
    s->last = w;
    s->queued++;
    pthread_mutex_unlock(&order);
    if (s->late) return;
    void *state = without_gil();
    pthread_mutex_lock(&order);
    prompt();
    pthread_mutex_unlock(&order);
    with_gil(state);
}

static void submit(cudaStream_t s, struct work one) { if (late()) push(s, one); else act(&one); }

void vcuda_copy(cudaStream_t s, void *to, const void *from, size_t bytes, int owned) {
    submit(s, (struct work){.kind = COPY, .to = to, .from = from, .bytes = bytes, .owned = owned});
}
void vcuda_fill(cudaStream_t s, void *at, int value, size_t bytes) {
    submit(s, (struct work){.kind = FILL, .to = at, .value = value, .bytes = bytes});
}
void vcuda_kernels(vcuda_kernel run) { kernel = run; } /* what does the work of a token; once, before the first */
void vcuda_launch(cudaStream_t s, size_t token) { submit(s, (struct work){.kind = KERNEL, .bytes = token}); }
void vcuda_break(void) { /* a kernel failed: who waits hears of it, for good */
    broken = 1;
    vcuda_report("a kernel failed: its traceback stands on stderr");
}
void vcuda_stop(void) { stopped = 1; } /* Python ends: no kernel is run any more */

static void await(cudaStream_t s, uint64_t place) {
    if (!late() || s->done >= place) return;
    void *state = without_gil();
    pthread_mutex_lock(&order);
    reach(s, place);
    pthread_mutex_unlock(&order);
    with_gil(state);
}
void vcuda_reach(cudaStream_t s) { await(named(s), named(s)->queued); }
uint64_t vcuda_now(void) { return tickets + 1; }
uint64_t vcuda_unfinished(void) {
    uint64_t oldest = UINT64_MAX;
    pthread_mutex_lock(&order);
    for (size_t i = 0; i < stream_count; i++) {
        if (streams[i]->busy) oldest = 0;
        else if (streams[i]->first && streams[i]->first->ticket < oldest) oldest = streams[i]->first->ticket;
    }
    pthread_mutex_unlock(&order);
    return oldest;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    /* none waits for the default stream: torch makes no other */
    late();
    cudaStream_t s = calloc(1, sizeof *s);
    s->priority = priority;
    pthread_mutex_lock(&order);
    int room = stream_count < MOST_STREAMS;
    if (room) streams[stream_count++] = s;
    pthread_mutex_unlock(&order);
    if (!room) { free(s); return vcuda_fail(cudaErrorMemoryAllocation); }
    *out = s;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { vcuda_reach(s); return cudaSuccess; } /* kept, for events name it */
static cudaError_t sound(void) { return broken ? vcuda_fail(cudaErrorAssert) : cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { vcuda_reach(s); return sound(); }
cudaError_t cudaDeviceSynchronize(void) {
    for (size_t i = 0; i < stream_count; i++) vcuda_reach(streams[i]);
    return sound();
}
void vcuda_seed(uint64_t value) { /* draw anew which streams are late, once all have done their work */
    cudaDeviceSynchronize();
    seed = value;
    for (size_t i = 0; i < stream_count; i++) draw(streams[i]);
}
/* A device goes on while nobody waits: who asks a few times in vain has a thread of ours do the work. The asking thread
 * may not, for it may hold a lock of torch's allocators for which a thread waits that holds Python's. */
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;
static void *go_on(void *unused) {
    pthread_mutex_lock(&order);
    for (;;) {
        for (size_t i = 0; i < stream_count; i++) if (streams[i]->wanted > streams[i]->done) reach(streams[i], streams[i]->wanted);
        pthread_cond_wait(&wanted, &order);
    }
    return unused;
}
static void start_going_on(void) {
    pthread_t thread;
    if (!pthread_create(&thread, NULL, go_on, NULL)) pthread_detach(thread);
}
static cudaError_t query(cudaStream_t s, uint64_t place, int *asked) {
    static pthread_once_t started = PTHREAD_ONCE_INIT;
    if (s->done >= place) return sound();
    if ((*asked)++ >= PATIENCE) {
        pthread_once(&started, start_going_on);
        pthread_mutex_lock(&order);
        if (s->wanted < place) s->wanted = place;
        pthread_cond_signal(&wanted);
        pthread_mutex_unlock(&order);
    }
    return cudaErrorNotReady; /* which leaves no error behind */
}
cudaError_t cudaStreamQuery(cudaStream_t s) { return query(named(s), named(s)->queued, &named(s)->asked); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    if (late() && e->recorded && e->stream != named(s) && e->stream->done < e->place)
        push(s, (struct work){.kind = WAIT, .other = e->stream, .place = e->place});
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *out) { *out = named(s)->priority; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *out) {
    *out = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
    *status = cudaStreamCaptureStatusNone; /* the rest is of a capture */
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    *out = calloc(1, sizeof **out);
    (*out)->flags = flags;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
    pthread_mutex_lock(&order);
    e->stream = named(s);
    e->place = e->stream->queued;
    e->recorded = 1;
    e->asked = 0;
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    pthread_mutex_unlock(&order);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { if (e->recorded) await(e->stream, e->place); return sound(); }
cudaError_t cudaEventQuery(cudaEvent_t e) { return e->recorded ? query(e->stream, e->place, &e->asked) : cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { /* between the calls that recorded them */
    if (!a->recorded || !b->recorded || ((a->flags | b->flags) & cudaEventDisableTiming)) return vcuda_fail(cudaErrorInvalidResourceHandle);
    if (a->stream->done < a->place || b->stream->done < b->place) return vcuda_fail(cudaErrorNotReady);
    *ms = (float)((double)(b->at.tv_sec - a->at.tv_sec) * 1e3 + (double)(b->at.tv_nsec - a->at.tv_nsec) * 1e-6);
    return cudaSuccess;
}
