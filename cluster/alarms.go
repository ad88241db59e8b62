package cluster

import (
	"container/heap"
	"sync"
	"time"
)

// alarms calls functions later, from one goroutine with one timer: there are too many
// activations for a runtime timer each.
type alarms struct {
	mu     sync.Mutex // guards the fields below
	queue  alarmHeap
	closed bool

	wake chan struct{}
	quit chan struct{}
	done chan struct{}
}

type alarm struct {
	at time.Time
	f  func()
}

type alarmHeap []alarm

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h alarmHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *alarmHeap) Push(x any)        { *h = append(*h, x.(alarm)) }
func (h *alarmHeap) Pop() any {
	old := *h
	last := len(old) - 1
	x := old[last]
	old[last] = alarm{}
	*h = old[:last]
	return x
}

func newAlarms() *alarms {
	return &alarms{wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
}

func (q *alarms) start() { go q.loop() }

func (q *alarms) stop() {
	q.mu.Lock()
	q.closed, q.queue = true, nil
	q.mu.Unlock()
	close(q.quit)
	<-q.done
}

func (q *alarms) after(d time.Duration, f func()) {
	a := alarm{at: time.Now().Add(d), f: f}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	first := len(q.queue) == 0 || a.at.Before(q.queue[0].at)
	heap.Push(&q.queue, a)
	q.mu.Unlock()
	if first {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

func (q *alarms) loop() {
	defer close(q.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := q.ring()
		timer.Reset(next)
		select {
		case <-q.quit:
			return
		case <-q.wake:
		case <-timer.C:
		}
	}
}

// ring calls the functions that are due and returns the time until the next one.
func (q *alarms) ring() time.Duration {
	for {
		q.mu.Lock()
		if len(q.queue) == 0 {
			q.mu.Unlock()
			return time.Hour
		}
		if d := time.Until(q.queue[0].at); d > 0 {
			q.mu.Unlock()
			return d
		}
		a := heap.Pop(&q.queue).(alarm)
		q.mu.Unlock()
		a.f()
	}
}
