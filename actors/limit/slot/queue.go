package slot

import (
	"context"
	"slices"
	"sync"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

const (
	// wishEvery is how often a node repeats its Wishes.
	wishEvery = 2 * time.Second
	// wishesMost is how many runs of a tenant one Wishes names, the oldest first.
	wishesMost = 1024
	// wishesAtOnce is how many Wishes are in flight at a time.
	wishesAtOnce = 8
)

// Node is what a Queue needs of the cluster (cluster.Node).
type Node interface {
	Ask(ctx context.Context, a cluster.Address, m any) (any, error)
	Tell(a cluster.Address, m any)
	Owns(s id.Shard) bool
}

// Queue is a node's side of the slots. It tells the slots at once what the node's runs
// want, and repeats it until the slots have answered: messages may be lost between nodes,
// and with the node that has the tenant's slots.
type Queue struct {
	node Node
	stop chan struct{}
	wake chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	tenants map[id.TenantID]*wishes
}

// wishes are the messages of a tenant's runs that the slots may not have received.
type wishes struct {
	waiting  map[id.RunID]time.Time // created at
	released map[id.RunID]bool
	taken    map[id.RunID]bool
}

// NewQueue makes an empty Queue.
func NewQueue(n Node) *Queue {
	return &Queue{node: n, stop: make(chan struct{}), wake: make(chan struct{}, 1), tenants: map[id.TenantID]*wishes{}}
}

// Start begins to repeat the wishes.
func (q *Queue) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	q.wg.Go(func() {
		<-q.stop
		cancel()
	})
	q.wg.Go(func() {
		tick := time.NewTicker(wishEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-q.wake:
			case <-q.stop:
				return
			}
			q.runOnce(ctx)
		}
	})
	return nil
}

// Stop ends the repetition.
func (q *Queue) Stop() {
	q.once.Do(func() { close(q.stop) })
	q.wg.Wait()
}

// Changed repeats the wishes at once, for node.OnChange: the slots may be on another
// node now.
func (q *Queue) Changed(cluster.Change) {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Acquire asks for a slot for a run. The run is told msg.SlotGranted, maybe more than
// once.
func (q *Queue) Acquire(t id.TenantID, wish msg.AcquireSlot) {
	q.mu.Lock()
	w := q.of(t)
	delete(w.released, wish.Run)
	w.waiting[wish.Run] = wish.CreatedAt
	q.mu.Unlock()
	q.node.Tell(Address(t), wish)
}

// Take tells the slots that a run continues after an approval.
func (q *Queue) Take(t id.TenantID, taken msg.TakeSlot) {
	q.mu.Lock()
	w := q.of(t)
	delete(w.waiting, taken.Run)
	delete(w.released, taken.Run)
	if len(w.taken) < wishesMost {
		w.taken[taken.Run] = true
	}
	q.mu.Unlock()
	q.node.Tell(Address(t), taken)
}

// Release tells the slots that a run needs no slot any more.
func (q *Queue) Release(t id.TenantID, done msg.ReleaseSlot) {
	q.mu.Lock()
	w := q.of(t)
	delete(w.waiting, done.Run)
	delete(w.taken, done.Run)
	if len(w.released) < wishesMost { // of further runs the slots learn from Postgres
		w.released[done.Run] = true
	}
	q.mu.Unlock()
	q.node.Tell(Address(t), done)
}

func (q *Queue) of(t id.TenantID) *wishes {
	w := q.tenants[t]
	if w == nil {
		w = &wishes{waiting: map[id.RunID]time.Time{}, released: map[id.RunID]bool{}, taken: map[id.RunID]bool{}}
		q.tenants[t] = w
	}
	return w
}

// runOnce repeats the wishes.
func (q *Queue) runOnce(ctx context.Context) {
	q.mu.Lock()
	all := map[id.TenantID]Wishes{}
	for t, w := range q.tenants {
		for run := range w.waiting {
			if !q.node.Owns(run.Shard()) { // its new owner asks for it
				delete(w.waiting, run)
			}
		}
		for run := range w.taken {
			if !q.node.Owns(run.Shard()) { // its new owner tells its end
				delete(w.taken, run)
			}
		}
		if len(w.waiting)+len(w.released)+len(w.taken) == 0 {
			delete(q.tenants, t)
			continue
		}
		all[t] = w.message()
	}
	q.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, wishEvery)
	defer cancel()
	var wg sync.WaitGroup
	slots := make(chan struct{}, wishesAtOnce)
	for t, m := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if v, err := q.node.Ask(ctx, Address(t), m); err == nil {
				if g, ok := v.(Granted); ok {
					q.heard(t, m, g)
				}
			}
		})
	}
	wg.Wait()
}

// message makes the Wishes, with the oldest waiting runs.
func (w *wishes) message() Wishes {
	var m Wishes
	for run, created := range w.waiting {
		m.Waiting = append(m.Waiting, msg.AcquireSlot{Run: run, CreatedAt: created})
	}
	slices.SortFunc(m.Waiting, func(a, b msg.AcquireSlot) int {
		return waiter{a.Run, a.CreatedAt}.compare(waiter{b.Run, b.CreatedAt})
	})
	m.Waiting = m.Waiting[:min(len(m.Waiting), wishesMost)]
	for run := range w.released {
		m.Released = append(m.Released, run)
	}
	for run := range w.taken {
		m.Taken = append(m.Taken, run)
	}
	return m
}

// heard forgets the wishes that the slots have received.
func (q *Queue) heard(t id.TenantID, m Wishes, g Granted) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.tenants[t]
	if w == nil {
		return
	}
	for _, run := range g.Running {
		delete(w.waiting, run)
	}
	for _, run := range m.Released {
		delete(w.released, run)
	}
	for _, run := range m.Taken {
		delete(w.taken, run)
	}
}
