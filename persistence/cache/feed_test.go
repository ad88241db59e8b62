package cache_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/persistence/cache"
	"agentsvc/persistence/cache/cachetest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// The library looks once a second whether a pool that could not dial has been closed:
// that goroutine ends by itself, a little later than goleak waits.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func member() id.MemberID { return id.MemberID{UUID: id.NewAnywhere()} }

// end is a member with a feed, and what it received.
type end struct {
	id   id.MemberID
	feed *cache.Feed
	lost atomic.Int64
	log  bytes.Buffer // of the feed's goroutines, read after Stop

	mu   sync.Mutex
	got  []string
	came chan struct{}
}

func join(t testing.TB, url string) *end {
	t.Helper()
	c, err := cache.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	e := &end{id: member(), came: make(chan struct{}, 1)}
	e.feed = c.NewFeed(e.id, zerolog.New(zerolog.SyncWriter(&e.log)))
	e.feed.Receive(func(m []byte) {
		e.mu.Lock()
		e.got = append(e.got, string(m))
		e.mu.Unlock()
		select {
		case e.came <- struct{}{}:
		default:
		}
	}, func() { e.lost.Add(1) })
	if err := e.feed.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.feed.Stop()
		c.Close()
		if strings.Contains(e.log.String(), cachetest.Password) {
			t.Error("the log has the password")
		}
	})
	return e
}

func (e *end) received() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.got...)
}

// until sends probes until one arrives: then everything sent before has arrived, or never
// will.
func (e *end) until(t testing.TB, to *end, probe string) {
	t.Helper()
	testkit.Eventually(t, probe+" comes", func() bool {
		e.feed.Send(to.id, []byte(probe))
		select {
		case <-to.came:
		case <-time.After(5 * time.Millisecond): // it was lost: the next one
		}
		return has(to.received(), probe)
	})
}

func has(got []string, want string) bool {
	for _, g := range got {
		if g == want {
			return true
		}
	}
	return false
}

func client(t testing.TB, s *cachetest.Server) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestMessagesComeInOrderToThoseTheyAreFor(t *testing.T) {
	s := cachetest.New(t)
	a, b, c := join(t, s.URL), join(t, s.URL), join(t, s.URL)
	for _, e := range []*end{a, b, c} {
		testkit.Eventually(t, "up", e.feed.Up)
	}
	const count = 5000
	var wg sync.WaitGroup
	for _, from := range []*end{a, c} {
		wg.Go(func() {
			for i := range count {
				from.feed.Send(b.id, fmt.Appendf(nil, "%s %d", from.id, i))
				if i%100 == 0 {
					from.feed.Send(from.id, []byte("own"))
				}
			}
		})
	}
	wg.Wait()
	testkit.Eventually(t, "all came", func() bool { return len(b.received()) == 2*count })
	next := map[string]int{}
	for _, g := range b.received() {
		var from string
		var n int
		if _, err := fmt.Sscanf(g, "%s %d", &from, &n); err != nil || n != next[from] {
			t.Fatalf("%q comes as number %d: %v", g, next[from], err)
		}
		next[from]++
	}
	testkit.Eventually(t, "the own ones", func() bool { return len(a.received()) == count/100 })
}

func TestAStreamIsBoundedExpiresAndGoesWithItsMember(t *testing.T) {
	s := cachetest.New(t)
	a, b := join(t, s.URL), join(t, s.URL)
	testkit.Eventually(t, "up", func() bool { return a.feed.Up() && b.feed.Up() })
	r := client(t, s)
	nobody := member()
	key := "svc:feed:" + nobody.String()
	for i := 0; ; i++ {
		a.feed.Send(nobody, bytes.Repeat([]byte{'x'}, 60<<10))
		n, err := r.XLen(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if n > 2200 {
			t.Fatalf("%d entries", n)
		}
		if i > 2300 && n >= 2048 {
			break
		}
	}
	if ttl, err := r.TTL(t.Context(), key).Result(); err != nil || ttl <= 0 || ttl > time.Minute {
		t.Errorf("it expires in %v, %v", ttl, err)
	}
	a.until(t, b, "x")
	a.until(t, a, "behind all that was sent to b")
	own := "svc:feed:" + b.id.String()
	b.feed.Stop()
	if n, err := r.Exists(t.Context(), own).Result(); err != nil || n != 0 {
		t.Errorf("its stream stays: %d, %v", n, err)
	}
	if b.feed.Up() {
		t.Error("it is up after Stop")
	}
}

func TestWhatWasReadIsTrimmed(t *testing.T) {
	s := cachetest.New(t)
	a, b := join(t, s.URL), join(t, s.URL)
	testkit.Eventually(t, "up", func() bool { return a.feed.Up() && b.feed.Up() })
	r := client(t, s)
	key := "svc:feed:" + b.id.String()
	for i := range 50 {
		a.until(t, b, fmt.Sprint(i))
	}
	testkit.Eventually(t, "the stream is short", func() bool {
		a.feed.Send(b.id, []byte("more"))
		n, err := r.XLen(t.Context(), key).Result()
		return err == nil && n > 0 && n < 20
	})
}

// Whatever happens to Redis, the feed recovers, nothing blocks, and messages arrive in order
// and not twice.
func TestRedisMayGoAndCome(t *testing.T) {
	s := cachetest.New(t)
	a, b := join(t, s.URL), join(t, s.URL)
	r := client(t, s)
	key := "svc:feed:" + b.id.String()
	for _, c := range []struct {
		name    string
		happens func()
		lost    bool // the reader is told
	}{
		{"killed and started anew", func() {
			s.Kill()
			testkit.Eventually(t, "down", func() bool {
				a.feed.Send(b.id, []byte("while it is away"))
				return !a.feed.Up() && !b.feed.Up()
			})
			s.Start()
		}, true},
		{"emptied", func() { r.FlushAll(t.Context()) }, false},
		{"the key is of another type", func() { r.Del(t.Context(), key); r.Set(t.Context(), key, "x", 0) }, false},
		{"strange entries", func() {
			r.XAdd(t.Context(), &redis.XAddArgs{Stream: key, Values: []any{"other", "x"}})
			r.XAdd(t.Context(), &redis.XAddArgs{Stream: key, Values: []any{"m", "\xff\xff\xff\xff\xff\xff"}})
			r.XAdd(t.Context(), &redis.XAddArgs{Stream: key, Values: []any{"m", "\x05abc"}})
		}, false},
		{"all connections are cut", func() { r.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }, false},
		{"made anew by a server whose clock is behind", func() {
			a.until(t, a, "behind all that was sent to b")
			r.Del(t.Context(), key)
			if err := r.XAdd(t.Context(), &redis.XAddArgs{Stream: key, ID: "5-1", Values: []any{"m", "\x03old"}}).Err(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "it is read from its start", func() bool { return has(b.received(), "old") })
			r.Del(t.Context(), key)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a.until(t, b, "before "+c.name)
			lost := b.lost.Load()
			c.happens()
			a.until(t, b, "after "+c.name)
			testkit.Eventually(t, "up", func() bool { return a.feed.Up() && b.feed.Up() })
			if c.lost != (b.lost.Load() > lost) {
				t.Errorf("told %d times", b.lost.Load()-lost)
			}
		})
	}
}

func TestAHangingRedisBlocksNobody(t *testing.T) {
	s := cachetest.New(t)
	a, b := join(t, s.URL), join(t, s.URL)
	a.until(t, b, "before")
	s.Signal(syscall.SIGSTOP)
	began := time.Now()
	m := bytes.Repeat([]byte{'x'}, 1000)
	for range 100_000 { // 100 MB: far more than may wait
		a.feed.Send(b.id, m)
	}
	took := time.Since(began)
	t.Logf("100,000 messages to a hanging Redis: %v", took)
	if took > 10*time.Second {
		t.Errorf("a sender was held up for %v", took)
	}
	testkit.Eventually(t, "both know", func() bool { return !a.feed.Up() && !b.feed.Up() })
	s.Signal(syscall.SIGCONT)
	a.until(t, b, "after")
}

func TestAMessageThatIsTooLongIsNotSent(t *testing.T) {
	s := cachetest.New(t)
	a, b := join(t, s.URL), join(t, s.URL)
	testkit.Eventually(t, "up", func() bool { return a.feed.Up() && b.feed.Up() })
	long := strings.Repeat("x", cache.MaxMessage)
	a.feed.Send(b.id, []byte(long+"y"))
	a.feed.Send(b.id, []byte(long))
	a.feed.Send(b.id, []byte("short"))
	testkit.Eventually(t, "both others", func() bool { return has(b.received(), "short") })
	if got := b.received(); len(got) != 2 || got[0] != long {
		t.Errorf("%d came", len(got))
	}
}

func TestItStartsAndStopsWithoutRedis(t *testing.T) {
	a := join(t, "redis://:"+cachetest.Password+"@127.0.0.1:1/0")
	a.feed.Send(a.id, []byte("x"))
	if a.feed.Up() {
		t.Error("up")
	}
	c, err := cache.Open("redis://127.0.0.1:1/0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.NewFeed(member(), zerolog.Nop()).Stop() // it never began
	began := time.Now()
	a.feed.Stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Stop took %v", took)
	}
}

func TestStopDoesNotWaitForARead(t *testing.T) {
	s := cachetest.New(t)
	for try := 1; ; try++ { // a busy machine may delay one, and a wait delays all
		a := join(t, s.URL)
		a.until(t, a, "x")
		began := time.Now()
		a.feed.Stop()
		took := time.Since(began)
		if took <= 900*time.Millisecond {
			return
		}
		if try == 3 {
			t.Fatalf("Stop took %v", took)
		}
	}
}

func TestAWrongURLIsNotRepeated(t *testing.T) {
	for _, u := range []string{"", "http://:hush@h", "redis://:hush@h:port", "redis://:hu sh@h/\x7f", "redis://:hush@h/x/y", "://hush", "redis://u:hush@h/notanumber"} {
		c, err := cache.Open(u)
		if err == nil {
			c.Close()
			t.Errorf("%q is taken", u)
			continue
		}
		if strings.Contains(err.Error(), "hu") {
			t.Errorf("%q: %v", u, err)
		}
	}
	c, err := cache.Open("redis://:hush@127.0.0.1:1/0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := c.Ping(ctx); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("ping: %v", err)
	}
}

// The time from Send to take over a Redis on this machine.
func BenchmarkFeed(b *testing.B) {
	s := cachetest.New(b)
	x, y := join(b, s.URL), join(b, s.URL)
	testkit.Eventually(b, "up", func() bool { return x.feed.Up() && y.feed.Up() })
	got := make(chan uint64, 1)
	z, err := cache.Open(s.URL)
	if err != nil {
		b.Fatal(err)
	}
	to := member()
	f := z.NewFeed(to, zerolog.Nop())
	f.Receive(func(m []byte) { got <- binary.BigEndian.Uint64(m) }, func() {})
	if err := f.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer z.Close()
	defer f.Stop()
	testkit.Eventually(b, "up", f.Up)
	b.Run("one at a time", func(b *testing.B) {
		for b.Loop() {
			x.feed.Send(to, binary.BigEndian.AppendUint64(nil, 1))
			<-got
		}
	})
	b.Run("a stream of them", func(b *testing.B) {
		var n uint64
		ahead := make(chan struct{}, 4096)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range ahead {
				<-got
			}
		}()
		for b.Loop() {
			ahead <- struct{}{}
			n++
			x.feed.Send(to, binary.BigEndian.AppendUint64(make([]byte, 0, 128), n)[:128])
		}
		close(ahead)
		<-done
	})
}
