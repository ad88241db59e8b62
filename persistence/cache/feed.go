package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
	"agentsvc/schemas/pause"
)

// Limits of a feed. A stream that is not read holds at most maxLen entries for at most
// keyLife.
const (
	MaxMessage = 128 << 10 // a longer message is not sent
	maxEntry   = 64 << 10  // an entry that has reached this size takes no further message
	maxLen     = 2048      // entries per stream
	maxQueue   = 4 << 20   // bytes queued for one member
	maxTargets = 256       // members with queued messages
	maxFlush   = 1 << 20   // bytes per exchange
	keyLife    = time.Minute
)

// Times of the feed's loops.
const (
	block        = time.Second // how long one read waits for an entry
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
	trimEvery    = time.Second
	logEvery     = time.Minute
)

// field is the only field of an entry: messages, each preceded by its length.
const field = "m"

// Feed sends messages to members and receives those to this one.
type Feed struct {
	cache  *Cache
	reader *redis.Client
	self   string
	log    zerolog.Logger
	take   func([]byte)
	lost   func()

	wake    chan struct{}
	writing atomic.Bool // the last flush succeeded
	reading atomic.Bool // the last read succeeded

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	queues map[id.MemberID]*queue
}

// queue holds the messages for one member.
type queue struct {
	messages [][]byte
	bytes    int
}

// NewFeed returns the feed of a member. Call Receive, then Start.
func (c *Cache) NewFeed(self id.MemberID, log zerolog.Logger) *Feed {
	o := c.options
	o.PoolSize = 1
	return &Feed{cache: c, reader: connect(o), self: keyOf(self), log: log, wake: make(chan struct{}, 1),
		queues: map[id.MemberID]*queue{}, take: func([]byte) {}, lost: func() {}}
}

func keyOf(m id.MemberID) string { return "svc:feed:" + m.String() }

// Receive sets the callbacks: take gets the messages, one at a time, and may keep them; lost
// is called when some may be missing because Redis did not answer.
func (f *Feed) Receive(take func(m []byte), lost func()) { f.take, f.lost = take, lost }

// Start begins sending and receiving. Redis need not be up.
func (f *Feed) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	f.wg.Go(func() { f.read(ctx) })
	f.wg.Go(func() { f.write(ctx) })
	return nil
}

// Stop ends both and deletes this member's stream. It does nothing on a feed that was not
// started.
func (f *Feed) Stop() {
	if f.cancel == nil {
		f.reader.Close()
		return
	}
	f.cancel()
	f.reader.Close() // wakes a waiting read
	f.wg.Wait()
	f.writing.Store(false)
	f.reading.Store(false)
	f.state()
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	f.cache.client.Del(ctx, f.self) // on an error it expires
}

// Up reports whether messages are sent and received, as far as is known.
func (f *Feed) Up() bool { return f.writing.Load() && f.reading.Load() }

// state exports Up as a metric.
func (f *Feed) state() {
	if f.Up() {
		up.Set(1)
	} else {
		up.Set(0)
	}
}

// Send queues a message for a member. It never blocks; the caller must not change m
// afterwards.
func (f *Feed) Send(to id.MemberID, m []byte) {
	if !f.writing.Load() {
		dropped.WithLabelValues("down").Inc()
		return
	}
	if len(m) > MaxMessage {
		dropped.WithLabelValues("long").Inc()
		return
	}
	f.mu.Lock()
	q := f.queues[to]
	if q == nil && len(f.queues) < maxTargets {
		q = &queue{}
		f.queues[to] = q
	}
	if q == nil || q.bytes+len(m) > maxQueue {
		f.mu.Unlock()
		dropped.WithLabelValues("full").Inc()
		return
	}
	q.messages = append(q.messages, m)
	q.bytes += len(m)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// queued removes and returns everything queued.
func (f *Feed) queued() map[id.MemberID]*queue {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queues) == 0 {
		return nil
	}
	q := f.queues
	f.queues = make(map[id.MemberID]*queue, len(q))
	return q
}

// write sends messages as they are queued.
func (f *Feed) write(ctx context.Context) {
	var logged time.Time
	f.connected(ctx)
	for {
		select {
		case <-f.wake:
		case <-ctx.Done():
			return
		}
		for queues := f.queued(); len(queues) > 0; queues = f.queued() {
			err := f.flush(ctx, queues)
			if err == nil || ctx.Err() != nil {
				continue
			}
			if now := time.Now(); now.Sub(logged) > logEvery {
				logged = now
				f.log.Warn().Err(err).Msg("cannot send messages to other members")
			}
			// An error reply of Redis (out of memory, a key of another type) is not a lost
			// connection.
			if refusal := redis.Error(nil); !errors.As(err, &refusal) {
				f.writing.Store(false)
				f.state()
				f.drop()
				f.connected(ctx)
			}
		}
	}
}

// connected waits until Redis answers the writer.
func (f *Feed) connected(ctx context.Context) {
	for back := firstBackoff; f.cache.Ping(ctx) != nil; back = min(2*back, lastBackoff) {
		if !pause.For(ctx, back/2+rand.N(back)) {
			return
		}
	}
	f.writing.Store(true)
	f.state()
}

// drop discards what was queued before the failure of Redis was noticed.
func (f *Feed) drop() {
	for _, q := range f.queued() {
		dropped.WithLabelValues("failed").Add(float64(len(q.messages)))
	}
}

// flush sends queues. After an error it is unknown which messages arrived.
func (f *Feed) flush(ctx context.Context, queues map[id.MemberID]*queue) error {
	p := f.cache.client.Pipeline()
	waiting, carried := 0, 0
	var failed error
	send := func() {
		if p.Len() == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, ioTimeout)
		defer cancel()
		if _, err := p.Exec(ctx); err != nil {
			failed = err
			dropped.WithLabelValues("failed").Add(float64(carried))
		}
		waiting, carried = 0, 0
	}
	for to, q := range queues {
		key := keyOf(to)
		for rest := q.messages; len(rest) > 0; {
			if failed != nil {
				dropped.WithLabelValues("failed").Add(float64(len(rest)))
				break
			}
			entry, n := join(rest)
			rest = rest[n:]
			p.XAdd(ctx, &redis.XAddArgs{Stream: key, MaxLen: maxLen, Approx: true, Values: []any{field, entry}})
			entries.WithLabelValues("out").Inc()
			bytesMoved.WithLabelValues("out").Add(float64(len(entry)))
			carried += n
			if waiting += len(entry); waiting >= maxFlush {
				send()
			}
		}
		if failed == nil {
			p.Expire(ctx, key, keyLife)
		}
	}
	if failed == nil {
		send()
	}
	return failed
}

// join makes an entry from the first messages and returns how many it took.
func join(messages [][]byte) (entry []byte, n int) {
	size := 0
	for n < len(messages) && (n == 0 || size+len(messages[n])+binary.MaxVarintLen32 <= maxEntry) {
		size += len(messages[n]) + binary.MaxVarintLen32
		n++
	}
	entry = make([]byte, 0, size)
	for _, m := range messages[:n] {
		entry = binary.AppendUvarint(entry, uint64(len(m)))
		entry = append(entry, m...)
	}
	return entry, n
}

// split calls take with each message of an entry, up to the first malformed one.
func split(entry string, take func([]byte)) {
	b := []byte(entry)
	for len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return
		}
		end := n + int(size)
		take(b[n:end:end])
		b = b[end:]
	}
}

// read receives until ctx ends.
func (f *Feed) read(ctx context.Context) {
	r := reading{feed: f, last: start}
	back := firstBackoff
	for failures := 0; ctx.Err() == nil; {
		err := r.once(ctx)
		if err != nil && redis.HasErrorPrefix(err, "WRONGTYPE") {
			err = f.reader.Del(ctx, f.self).Err() // the stream belongs to this member alone
		}
		if err == nil {
			failures, back = 0, firstBackoff
			continue
		}
		if ctx.Err() != nil {
			return
		}
		// A broken connection may have lost nothing: the entries wait in the stream. Only a
		// failed reconnect means loss.
		if failures++; failures == 1 {
			continue
		}
		if f.reading.Swap(false) {
			f.state()
			f.log.Warn().Err(err).Msg("cannot receive messages from other members")
			f.lost()
		}
		if !pause.For(ctx, back/2+rand.N(back)) {
			return
		}
		back = min(2*back, lastBackoff)
	}
}

// start precedes every entry: a member's stream is as old as the member.
const start = "0-0"

// reading is the reader's position in its own stream.
type reading struct {
	feed    *Feed
	last    string // the entry that was read last
	trimmed time.Time
}

// once reads the available entries, or waits a moment for some.
func (r *reading) once(ctx context.Context) error {
	f := r.feed
	ctx, cancel := context.WithTimeout(ctx, block+ioTimeout)
	defer cancel()
	if !f.reading.Load() {
		if err := f.reader.Ping(ctx).Err(); err != nil {
			return err
		}
		f.reading.Store(true)
		f.state()
	}
	streams, err := f.reader.XRead(ctx, &redis.XReadArgs{Streams: []string{f.self, r.last}, Count: 128, Block: block}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return r.idle(ctx)
	case err != nil:
		return err
	}
	for _, s := range streams {
		for _, m := range s.Messages {
			r.last = m.ID
			if entry, ok := m.Values[field].(string); ok {
				entries.WithLabelValues("in").Inc()
				bytesMoved.WithLabelValues("in").Add(float64(len(entry)))
				split(entry, f.take)
			}
		}
	}
	if now := time.Now(); now.Sub(r.trimmed) > trimEvery {
		r.trimmed = now
		return f.reader.XTrimMinID(ctx, f.self, r.last).Err()
	}
	return nil
}

// idle detects a stream that was recreated by a server whose clock is behind the previous
// one's: its entries would never sort after the last one read.
func (r *reading) idle(ctx context.Context) error {
	if r.last == start {
		return nil
	}
	newest, err := r.feed.reader.XRevRangeN(ctx, r.feed.self, "+", "-", 1).Result()
	if err == nil && len(newest) > 0 && less(newest[0].ID, r.last) {
		r.last = start
	}
	return err
}

// less reports whether entry a comes before b.
func less(a, b string) bool {
	am, as, _ := strings.Cut(a, "-")
	bm, bs, _ := strings.Cut(b, "-")
	x, _ := strconv.ParseUint(am, 10, 64)
	y, _ := strconv.ParseUint(bm, 10, 64)
	if x != y {
		return x < y
	}
	x, _ = strconv.ParseUint(as, 10, 64)
	y, _ = strconv.ParseUint(bs, 10, 64)
	return x < y
}
