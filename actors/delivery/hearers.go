package delivery

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/webhook"
)

const (
	maxHearers   = 1 << 16 // tenants
	hearersFor   = 30 * time.Second
	maxCommitted = 1 << 16 // tenants with commits not yet handled
	loaders      = 4
	loadTimeout  = 5 * time.Second
)

// Reader reads the enabled endpoints of a tenant, and its listeners.
type Reader interface {
	Hearing(ctx context.Context, t id.TenantID) ([]store.Hearing, error)
}

// Teller sends messages (cluster.Node).
type Teller interface {
	Tell(a cluster.Address, m any)
}

// HearersConfig holds the dependencies of Hearers. Reader and Tell are required.
type HearersConfig struct {
	Reader Reader
	Tell   Teller
	Live   func() bool      // the node holds its lease; nil: always
	Now    func() time.Time // nil: time.Now
	Log    zerolog.Logger
}

// Hearers caches which endpoints of a tenant subscribe to which events, and wakes them when
// such an event was committed. Unknown tenants are read in the background; if that fails no
// endpoint is woken, and the sweep finds the due deliveries. Only Start and Stop block.
type Hearers struct {
	cfg    HearersConfig
	cache  *store.Cache[id.TenantID, []store.Hearing]
	bell   chan struct{} // capacity 1: committed has entries
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	committed map[id.TenantID][]webhook.Type
	unknown   map[id.TenantID][]webhook.Type // to be read, and then handled
	reading   map[id.TenantID]bool           // being read, each by one loader
	loading   int                            // number of loaders
	failing   bool                           // the last read failed, and that was logged
}

// NewHearers returns Hearers with an empty cache.
func NewHearers(cfg HearersConfig) *Hearers {
	return &Hearers{
		cfg:       cfg,
		cache:     store.NewCache[id.TenantID, []store.Hearing](store.CacheConfig{Max: maxHearers, TTL: hearersFor, Now: cfg.Now, Live: cfg.Live}),
		bell:      make(chan struct{}, 1),
		committed: map[id.TenantID][]webhook.Type{},
		unknown:   map[id.TenantID][]webhook.Type{},
		reading:   map[id.TenantID]bool{},
	}
}

// Start starts waking endpoints.
func (h *Hearers) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	h.wg.Go(func() {
		for {
			select {
			case <-h.bell:
				h.runOnce(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	return nil
}

// Stop stops it and waits.
func (h *Hearers) Stop() {
	if h.cancel != nil {
		h.cancel()
	}
	h.wg.Wait()
}

// Hears reports whether a tenant has any endpoint or listener. For a tenant that is not
// cached it returns true and starts a read.
func (h *Hearers) Hears(t id.TenantID) bool {
	if hearing, ok := h.cache.Get(t); ok {
		return len(hearing) > 0
	}
	h.note(t)
	return true
}

// Committed records that an event of a tenant is durable. Its subscribers are sent
// durable.Wake soon, once for many events.
func (h *Hearers) Committed(t id.TenantID, of webhook.Type) { h.note(t, of) }

// Forget drops a tenant's cached endpoints, after one was created, changed or deleted.
func (h *Hearers) Forget(t id.TenantID) { h.cache.Drop(t) }

// ForgetAll drops everything.
func (h *Hearers) ForgetAll() { h.cache.Clear() }

// note adds to what runOnce handles; without a type it only loads the tenant.
func (h *Hearers) note(t id.TenantID, types ...webhook.Type) {
	h.mu.Lock()
	fits := merge(h.committed, t, types)
	h.mu.Unlock()
	if !fits {
		loadFailures.Inc()
		return
	}
	select {
	case h.bell <- struct{}{}:
	default:
	}
}

// merge adds types to those of t, and reports whether there was room.
func merge(into map[id.TenantID][]webhook.Type, t id.TenantID, types []webhook.Type) bool {
	have, ok := into[t]
	if !ok && len(into) >= maxCommitted {
		return false
	}
	for _, of := range types {
		if !slices.Contains(have, of) {
			have = append(have, of)
		}
	}
	into[t] = have
	return true
}

// runOnce wakes the subscribers of the events committed since the last time.
func (h *Hearers) runOnce(ctx context.Context) {
	h.mu.Lock()
	committed := h.committed
	h.committed = make(map[id.TenantID][]webhook.Type, min(len(committed), 1024))
	h.mu.Unlock()
	for t, types := range committed {
		if hearing, ok := h.cache.Get(t); ok {
			h.wake(t, hearing, types)
		} else {
			h.load(ctx, t, types)
		}
	}
}

func (h *Hearers) wake(t id.TenantID, hearing []store.Hearing, types []webhook.Type) {
	for _, w := range hearing {
		if !w.Listener && slices.ContainsFunc(types, func(of webhook.Type) bool { return webhook.Hears(w.Events, of) }) {
			h.cfg.Tell.Tell(Address(t, w.ID), durable.Wake{})
		}
	}
}

// load makes a loader read a tenant.
func (h *Hearers) load(ctx context.Context, t id.TenantID, types []webhook.Type) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !merge(h.unknown, t, types) {
		loadFailures.Inc()
		return
	}
	if h.loading < loaders {
		h.loading++
		h.wg.Go(func() { h.loadAll(ctx) })
	}
}

// loadAll reads unknown tenants until none is left. Events noted for a tenant during its read
// wait for that read, and for another one if its endpoints changed meanwhile.
func (h *Hearers) loadAll(ctx context.Context) {
	for {
		t, types, ok := h.nextUnknown(ctx)
		if !ok {
			return
		}
		once, cancel := context.WithTimeout(ctx, loadTimeout)
		hearing, _, err := h.cache.Load(once, t, func(ctx context.Context) ([]store.Hearing, bool, error) {
			hearing, err := h.cfg.Reader.Hearing(ctx, t)
			return hearing, true, err
		})
		cancel()
		h.loaded(ctx, t, hearing, types, err)
	}
}

func (h *Hearers) nextUnknown(ctx context.Context) (id.TenantID, []webhook.Type, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() == nil {
		for t, types := range h.unknown {
			if !h.reading[t] {
				delete(h.unknown, t)
				h.reading[t] = true
				return t, types, true
			}
		}
	}
	h.loading--
	return id.TenantID{}, nil, false
}

// loaded ends the read of a tenant, and wakes the subscribers of types. The events noted meanwhile
// are handled anew: they may have come after a change that the read did not see. After a failure they
// wait for another read. It counts failures, and logs the first of several.
func (h *Hearers) loaded(ctx context.Context, t id.TenantID, hearing []store.Hearing, types []webhook.Type, err error) {
	var meanwhile []webhook.Type
	h.mu.Lock()
	delete(h.reading, t)
	if err == nil {
		meanwhile = h.unknown[t]
		delete(h.unknown, t)
	}
	first := err != nil && !h.failing
	h.failing = err != nil
	h.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		loadFailures.Inc()
		if first {
			h.cfg.Log.Warn().Err(err).Stringer("tenant", t).Msg("cannot read the subscribers of a tenant's events")
		}
	}
	if err == nil {
		h.wake(t, hearing, types)
	}
	if len(meanwhile) > 0 {
		h.note(t, meanwhile...)
	}
}
