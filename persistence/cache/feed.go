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
)

// Bounds of a feed. A stream that nobody reads holds at most maxLen entries for
// at most keyLife.
const (
	MaxMessage = 128 << 10 // a longer message is not sent
	maxEntry   = 64 << 10  // an entry is not made longer by another message
	maxLen     = 2048      // entries of a stream
	maxQueue   = 4 << 20   // bytes that wait for one member
	maxTargets = 256       // members with something waiting
	maxFlush   = 1 << 20   // bytes of one exchange
	keyLife    = time.Minute
)

// Times of the feed's loops.
const (
	block        = time.Second // one read waits so long for an entry
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = time.Second
	trimEvery    = time.Second
	logEvery     = time.Minute
)

// field is the one field of an entry: messages, each behind its length.
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
	writing atomic.Bool // the last flush went well
	reading atomic.Bool // so did the last read

	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	queues map[id.MemberID]*queue
}

// queue is what waits for a member.
type queue struct {
	messages [][]byte
	bytes    int
}

// NewFeed is the feed of a member. Call Receive, then Start.
func (c *Cache) NewFeed(self id.MemberID, log zerolog.Logger) *Feed {
	o := c.options
	o.PoolSize = 1
	return &Feed{cache: c, reader: connect(o), self: keyOf(self), log: log, wake: make(chan struct{}, 1),
		queues: map[id.MemberID]*queue{}, take: func([]byte) {}, lost: func() {}}
}

func keyOf(m id.MemberID) string { return "svc:feed:" + m.String() }

// Receive says who takes the messages, one at a time, each its own to keep, and
// who is told that some may be missing because Redis did not answer.
func (f *Feed) Receive(take func(m []byte), lost func()) { f.take, f.lost = take, lost }

// Start begins to send and to receive. Redis need not be there.
func (f *Feed) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	f.wg.Go(func() { f.read(ctx) })
	f.wg.Go(func() { f.write(ctx) })
	return nil
}

// Stop ends both and takes this member's stream away. A feed that never began
// has nothing to end.
func (f *Feed) Stop() {
	if f.cancel == nil {
		f.reader.Close()
		return
	}
	f.cancel()
	f.reader.Close() // wakes a read that waits
	f.wg.Wait()
	f.writing.Store(false)
	f.reading.Store(false)
	f.state()
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	f.cache.client.Del(ctx, f.self) // else it expires
}

// Up reports whether messages come and go, as far as is known.
func (f *Feed) Up() bool { return f.writing.Load() && f.reading.Load() }

// state shows Up.
func (f *Feed) state() {
	if f.Up() {
		up.Set(1)
	} else {
		up.Set(0)
	}
}

// Send queues a message for a member. It never blocks; m is not to be changed
// any more.
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

// queued takes everything that waits.
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

// write sends what is queued, as it is queued.
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
				f.log.Warn().Err(err).Msg("messages to other members are not sent")
			}
			// A command that Redis refused (no memory, a key of another type) is no
			// lost connection.
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
		if !pause(ctx, back) {
			return
		}
	}
	f.writing.Store(true)
	f.state()
}

// drop forgets what was queued before it was known that Redis is away.
func (f *Feed) drop() {
	for _, q := range f.queued() {
		dropped.WithLabelValues("failed").Add(float64(len(q.messages)))
	}
}

// flush sends queues. After an error it is not known what arrived.
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

// join makes an entry of the first messages and says how many they are.
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

// split calls take with each message of an entry, as far as it is one.
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
			err = f.reader.Del(ctx, f.self).Err() // it is ours alone
		}
		if err == nil {
			failures, back = 0, firstBackoff
			continue
		}
		if ctx.Err() != nil {
			return
		}
		// A connection that broke may have lost nothing: the entries wait. One that
		// cannot be made anew is another matter.
		if failures++; failures == 1 {
			continue
		}
		if f.reading.Swap(false) {
			f.state()
			f.log.Warn().Err(err).Msg("messages of other members are not received")
			f.lost()
		}
		if !pause(ctx, back) {
			return
		}
		back = min(2*back, lastBackoff)
	}
}

// start is before every entry: a member's stream is as old as the member.
const start = "0-0"

// reading is where the reader of the own stream is.
type reading struct {
	feed    *Feed
	last    string // the entry that was read last
	trimmed time.Time
}

// once reads what there is, or waits a moment for something.
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

// idle looks whether the stream was made anew by a server whose clock is behind
// the former one's: its entries would never come after the last one read.
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

// pause waits about d; false says that ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
