package sse

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reader is a subscriber that hands out its stream.
type reader struct {
	t      testing.TB
	conn   chan *Conn
	gone   chan struct{}
	once   sync.Once
	attach func(*Conn)
}

func newReader(t testing.TB) *reader {
	return &reader{t: t, conn: make(chan *Conn, 1), gone: make(chan struct{})}
}

func (r *reader) Attach(c *Conn) {
	r.conn <- c
	if r.attach != nil {
		r.attach(c)
	}
}

func (r *reader) Gone() {
	twice := true
	r.once.Do(func() { close(r.gone); twice = false })
	if twice {
		r.t.Error("Gone was called twice")
	}
}

func (r *reader) waitGone() {
	r.t.Helper()
	select {
	case <-r.gone:
	case <-time.After(patience):
		r.t.Fatal("the subscriber was not told")
	}
}

// patience is how long a test waits for an expected event: far longer than it takes even on a
// busy machine.
const patience = time.Minute

// both runs a test on taken-over descriptors and on goroutines.
func both(t *testing.T, cfg Config, test func(t *testing.T, s *Streams)) {
	for _, goroutines := range []bool{false, true} {
		t.Run(fmt.Sprintf("goroutines=%v", goroutines), func(t *testing.T) {
			cfg := cfg
			cfg.Goroutines = goroutines
			if cfg.Heartbeat == 0 {
				cfg.Heartbeat = time.Hour
			}
			s, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Stop()
			test(t, s)
		})
	}
}

// pair returns a loopback connection with bounded buffers, so that a client that does not
// read is soon full.
func pair(t testing.TB) (server, client *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client = c.(*net.TCPConn)
	_ = client.SetReadBuffer(64 << 10)
	a, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server = a.(*net.TCPConn)
	_ = server.SetWriteBuffer(64 << 10)
	return server, client
}

// open starts a stream and reads its head.
func open(t testing.TB, s *Streams, owner Owner, r *reader) (*Conn, *net.TCPConn, *bufio.Reader) {
	t.Helper()
	server, client := pair(t)
	opened := make(chan error, 1)
	go func() { opened <- s.Open(server, []byte("head\n\n"), owner, r) }()
	br := bufio.NewReader(client)
	_ = client.SetReadDeadline(time.Now().Add(patience))
	if l, err := br.ReadString('\n'); err != nil || l != "head\n" {
		t.Fatalf("%v %q", err, l)
	}
	_, _ = br.ReadString('\n')
	c := <-r.conn
	if r.attach == nil {
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
	}
	return c, client, br
}

func delta(offset int64, text string) *event.Frame {
	return event.Delta(event.LLMDelta, event.Pos{Seq: 2, Offset: offset}, 0, text)
}

func fact(t testing.TB, seq int64, size int) *event.Frame {
	t.Helper()
	f, err := event.New(event.ToolResult, event.Pos{Seq: seq}, map[string]any{"idx": seq, "output_preview": strings.Repeat("x", size)})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// parse splits a client's bytes into frame ids and text.
func parse(t testing.TB, b string) (ids []string, text string) {
	t.Helper()
	for _, f := range strings.Split(strings.TrimSuffix(b, "\n\n"), "\n\n") {
		if f == "" {
			continue
		}
		var idLine, data string
		for _, l := range strings.Split(f, "\n") {
			if v, ok := strings.CutPrefix(l, "id: "); ok {
				idLine = v
			}
			if v, ok := strings.CutPrefix(l, "data: "); ok {
				data = v
			}
		}
		if data == "" || !strings.HasSuffix(data, "}") {
			t.Fatalf("a torn frame: %q", f)
		}
		ids = append(ids, idLine)
		if _, rest, ok := strings.Cut(data, `"text":"`); ok {
			text += strings.TrimSuffix(rest, `"}`)
		}
	}
	return ids, text
}

// pending returns the number of bytes that wait for c's socket.
func pending(c *Conn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out == nil {
		return 0
	}
	return c.out.size
}

// filler sends live text, never past the bound of a stream.
type filler struct {
	c      *Conn
	offset int64
	frames int
}

// fill sends until half of the bound waits for the socket. It reports whether the stream lives.
func (f *filler) fill() bool {
	text := strings.Repeat("y", 1000)
	for pending(f.c) <= f.c.s.cfg.MaxPending/2 {
		f.offset += int64(len(text))
		f.frames++
		if !f.c.Send(delta(f.offset, text)) {
			return false
		}
	}
	return f.c.SendAll(nil)
}

// fillUp sends live text until the socket appears full, because nothing has left for a while, or the stream is cut. It
// returns the offset reached.
func fillUp(t testing.TB, c *Conn) (offset int64, frames int) {
	t.Helper()
	f, left, since := &filler{c: c}, -1, time.Time{}
	testkit.Eventually(t, "the socket is full", func() bool {
		if !f.fill() {
			return true
		}
		if p := pending(c); p != left {
			left, since = p, time.Now()
		}
		return time.Since(since) >= 30*time.Millisecond
	})
	return f.offset, f.frames
}

// fillOn sends live text as long as the stream lives.
func fillOn(t testing.TB, c *Conn) {
	t.Helper()
	f := &filler{c: c}
	testkit.Eventually(t, "the stream is cut", func() bool { return !f.fill() })
}

func TestFramesArriveInOrder(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Streams) {
		r := newReader(t)
		c, client, br := open(t, s, Owner{}, r)
		defer client.Close()
		var want bytes.Buffer
		var all []*event.Frame
		for i := range 300 {
			f := fact(t, int64(i+1), i*20)
			want.Write(f.Bytes())
			all = append(all, f)
		}
		go func() {
			for _, f := range all[:100] {
				c.Send(f)
			}
			if !c.Backfill(all[100:]) {
				t.Error("the backfill was cut")
			}
			c.Close()
		}()
		got, err := io.ReadAll(br)
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("%v, %d bytes of %d", err, len(got), want.Len())
		}
		r.waitGone()
	})
}

// A client that takes its backfill slowly does not hold the frames that it has been sent.
func TestABackfillDropsWhatWasSent(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Streams) {
		r := newReader(t)
		c, client, br := open(t, s, Owner{}, r)
		defer client.Close()
		var all []*event.Frame
		for i := range 1000 {
			all = append(all, fact(t, int64(i+1), 1000))
		}
		go func() {
			defer c.Close()
			if !c.Backfill(all) {
				t.Error("the backfill was cut")
			}
			for i, f := range all {
				if f != nil {
					t.Errorf("frame %d is held", i)
					break
				}
			}
		}()
		if _, err := io.ReadAll(br); err != nil {
			t.Fatal(err)
		}
		r.waitGone()
	})
}

// SendAll into a socket that fills in the middle of a frame.
func TestSendAllIntoAFullSocket(t *testing.T) {
	both(t, Config{MaxPending: 16 << 20}, func(t *testing.T, s *Streams) {
		r := newReader(t)
		c, client, br := open(t, s, Owner{}, r)
		defer client.Close()
		var want bytes.Buffer
		var all []*event.Frame
		for i := range 4000 {
			f := fact(t, int64(i+1), (i*37)%900)
			want.Write(f.Bytes())
			all = append(all, f)
		}
		if !c.SendAll(all) {
			t.Fatal("SendAll said false")
		}
		if st := s.Stats(); st.Frames != 4000 || st.Bytes != int64(want.Len()) || st.Full == 0 {
			t.Fatalf("%+v for %d bytes", st, want.Len())
		}
		c.Close()
		got, err := io.ReadAll(br)
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("%v, %d bytes of %d", err, len(got), want.Len())
		}
	})
}

// Text of a slow reader is merged: nothing is lost or repeated, and far fewer frames arrive.
func TestLiveTextIsMerged(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Streams) {
		r := newReader(t)
		c, client, br := open(t, s, Owner{}, r)
		defer client.Close()
		offset, sent := fillUp(t, c)
		var want strings.Builder
		want.WriteString(strings.Repeat("y", int(offset)))
		const n = 20_000 // 2 MB unmerged, 80 kB merged
		for i := range n {
			word := fmt.Sprintf("w%03d", i%1000)
			want.WriteString(word)
			offset += int64(len(word))
			if !c.Send(delta(offset, word)) {
				t.Fatalf("cut after %d frames", i)
			}
		}
		c.Send(fact(t, 3, 10))
		c.Close()
		got, err := io.ReadAll(br)
		if err != nil {
			t.Fatal(err)
		}
		ids, read := parse(t, string(got))
		if read != want.String() {
			t.Fatalf("%d bytes of text, want %d", len(read), want.Len())
		}
		if len(ids) > sent+n/10 {
			t.Fatalf("%d frames for %d", len(ids), sent+n)
		}
		if last := ids[len(ids)-2]; last != fmt.Sprintf("2.%d", offset) || ids[len(ids)-1] != "3" {
			t.Fatalf("last ids %v", ids[len(ids)-2:])
		}
	})
}

func TestMergeIsMerged(t *testing.T) {
	frames := []*event.Frame{
		delta(2, "ab"), delta(4, "cd"), delta(7, "é€"[:2]+"x"),
		event.Delta(event.LLMThinking, event.Pos{Seq: 2, Offset: 9}, 0, "th"),
		event.Delta(event.LLMThinking, event.Pos{Seq: 2, Offset: 11}, 0, "in"),
		fact(t, 3, 1),
		delta(20, "gap"), delta(30, "after"),
		event.Delta(event.LLMDelta, event.Pos{Seq: 2, Offset: 31}, 1, "z"),
	}
	var want []*event.Frame
	for _, f := range frames {
		if len(want) > 0 {
			if m, ok := want[len(want)-1].Merged(f); ok {
				want[len(want)-1] = m
				continue
			}
		}
		want = append(want, f)
	}
	got := merge(append([]*event.Frame(nil), frames...))
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(got[i].Bytes(), want[i].Bytes()) {
			t.Fatalf("%d: %s, want %s", i, got[i].Bytes(), want[i].Bytes())
		}
	}
}

// security.md, Invariant 12: a reader that never reads does not affect others.
func TestSlowReaderIsCut(t *testing.T) {
	t.Run("past the bound", func(t *testing.T) {
		both(t, Config{MaxPending: 64 << 10}, func(t *testing.T, s *Streams) {
			slow, fast := newReader(t), newReader(t)
			c, client, _ := open(t, s, Owner{}, slow)
			defer client.Close()
			other, good, br := open(t, s, Owner{}, fast)
			defer good.Close()
			read := make(chan int, 1)
			go func() {
				b, _ := io.ReadAll(br)
				ids, _ := parse(t, string(b))
				read <- len(ids)
			}()
			n := 0
			for c.Send(fact(t, int64(n+1), 1000)) {
				if n++; n > 20_000 {
					t.Fatal("never cut")
				}
				if !other.Backfill([]*event.Frame{fact(t, int64(n), 1000)}) {
					t.Fatal("the good reader was cut")
				}
			}
			slow.waitGone()
			other.Close()
			if got := <-read; got != n {
				t.Fatalf("the good reader got %d of %d", got, n)
			}
			if s.Stats().Ends[Overflow] != 1 {
				t.Fatalf("%+v", s.Stats())
			}
		})
	})
	t.Run("without progress", func(t *testing.T) {
		both(t, Config{Stall: 100 * time.Millisecond}, func(t *testing.T, s *Streams) {
			r := newReader(t)
			c, client, _ := open(t, s, Owner{}, r)
			defer client.Close()
			fillOn(t, c)
			r.waitGone()
			if st := s.Stats(); st.Ends[Stalled]+st.Ends[Hangup] != 1 || st.Open != 0 {
				t.Fatalf("%+v", st)
			}
		})
	})
	t.Run("while it is closed", func(t *testing.T) {
		both(t, Config{Stall: 100 * time.Millisecond}, func(t *testing.T, s *Streams) {
			r := newReader(t)
			c, client, _ := open(t, s, Owner{}, r)
			defer client.Close()
			fillUp(t, c)
			c.Close()
			r.waitGone()
		})
	})
	t.Run("while it is filled", func(t *testing.T) {
		both(t, Config{Stall: 100 * time.Millisecond}, func(t *testing.T, s *Streams) {
			r := newReader(t)
			said := make(chan bool, 1)
			r.attach = func(c *Conn) {
				var all []*event.Frame
				for i := range 20_000 {
					all = append(all, fact(t, int64(i+1), 1000))
				}
				said <- c.Backfill(all)
			}
			_, client, _ := open(t, s, Owner{}, r)
			defer client.Close()
			r.waitGone()
			if <-said {
				t.Fatal("the backfill of a dead stream said true")
			}
		})
	})
}

// A frame larger than the bound is delivered to a client that reads.
func TestLargeFrame(t *testing.T) {
	both(t, Config{MaxPending: 16 << 10}, func(t *testing.T, s *Streams) {
		r := newReader(t)
		c, client, br := open(t, s, Owner{}, r)
		defer client.Close()
		f := fact(t, 1, 1<<20)
		if !c.Send(f) {
			t.Fatal("refused")
		}
		c.Close()
		got, err := io.ReadAll(br)
		if err != nil || !bytes.Equal(got, f.Bytes()) {
			t.Fatalf("%v, %d bytes", err, len(got))
		}
		r.waitGone()
	})
}

func TestHeartbeat(t *testing.T) {
	const every = 50 * time.Millisecond
	start := time.Now()
	both(t, Config{Heartbeat: every}, func(t *testing.T, s *Streams) {
		defer func() { start = time.Now() }()
		r := newReader(t)
		_, client, br := open(t, s, Owner{}, r)
		defer client.Close()
		for range 4 {
			b := make([]byte, len(event.Beat.Bytes()))
			if _, err := io.ReadFull(br, b); err != nil || !bytes.Equal(b, event.Beat.Bytes()) {
				t.Fatalf("%v %q", err, b)
			}
		}
		// Late beats are caught up, so only the start of the wheel tells how many were due.
		if took := time.Since(start); took < 3*every {
			t.Fatalf("four heartbeats within %v", took)
		}
	})
}

// narrow is a socket that takes a set number of bytes and no more until it has room again.
type narrow struct {
	room int
	got  []byte
}

func (n *narrow) send(b []byte) (int, error) {
	k := min(n.room, len(b))
	n.got, n.room = append(n.got, b[:k]...), n.room-k
	if k < len(b) {
		return k, errFull
	}
	return k, nil
}

func (*narrow) want(bool) {}
func (*narrow) close()    {}

// A heartbeat is skipped when the socket is full: frames are already waiting, and none of
// them is lost or cut in two.
func TestAHeartbeatMeetsAFullSocket(t *testing.T) {
	s, err := New(Config{Heartbeat: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	frames := make([]*event.Frame, 3)
	var want []byte
	for i := range frames {
		frames[i] = fact(t, int64(i), 20)
		want = append(want, frames[i].Bytes()...)
	}
	for room := range len(frames[0].Bytes()) { // the first frame does not fit
		sock := &narrow{room: room}
		c := &Conn{s: s, sock: sock}
		for _, f := range frames[:2] {
			if !c.Send(f) {
				t.Fatal("the stream ended")
			}
			c.beat()
		}
		sock.room = 1 << 20
		c.mu.Lock()
		c.flush()
		c.mu.Unlock()
		c.Send(frames[2])
		if string(sock.got) != string(want) {
			t.Fatalf("room for %d bytes: got\n%s\nwant\n%s", room, sock.got, want)
		}
		c.beat()
		if string(sock.got) != string(want)+string(beatBytes) {
			t.Fatalf("no heartbeat when the socket is free: %s", sock.got)
		}
	}
}

func TestHangups(t *testing.T) {
	for name, hangUp := range map[string]func(*net.TCPConn){
		"close":      func(c *net.TCPConn) { _ = c.Close() },
		"reset":      func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		"half close": func(c *net.TCPConn) { _ = c.CloseWrite() },
		"talk and close": func(c *net.TCPConn) {
			_, _ = c.Write([]byte("hello"))
			_ = c.Close()
		},
		"flood": func(c *net.TCPConn) { _, _ = c.Write(make([]byte, 2*maxTalk)) },
	} {
		t.Run(name, func(t *testing.T) {
			both(t, Config{}, func(t *testing.T, s *Streams) {
				r := newReader(t)
				c, client, _ := open(t, s, Owner{}, r)
				defer client.Close()
				hangUp(client)
				r.waitGone()
				if c.Send(fact(t, 1, 1)) || s.Count() != 0 {
					t.Fatal("still open")
				}
			})
		})
	}
}

// Gone is called after Attach, even if the client left long before.
func TestGoneWaitsForAttach(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Streams) {
		r := newReader(t)
		hold := make(chan struct{})
		r.attach = func(*Conn) { <-hold }
		c, client, _ := open(t, s, Owner{}, r)
		_ = client.Close()
		testkit.Eventually(t, "the stream is cut", func() bool { return !c.SendAll(nil) })
		next := newReader(t) // whose turn to be told comes after r's
		_, client, _ = open(t, s, Owner{}, next)
		_ = client.Close()
		next.waitGone()
		select {
		case <-r.gone:
			t.Fatal("told while Attach was running")
		default:
		}
		close(hold)
		r.waitGone()
	})
}

func TestCloseWhereAndDrain(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Streams) {
		key := id.KeyID{UUID: id.NewAnywhere()}
		mine, other := newReader(t), newReader(t)
		c, a, _ := open(t, s, Owner{Key: key}, mine)
		defer a.Close()
		d, b, _ := open(t, s, Owner{}, other)
		defer b.Close()
		if c.Owner().Key != key || s.CloseWhere(func(o Owner) bool { return o.Key == key }) != 1 {
			t.Fatal("the owner was not found")
		}
		mine.waitGone()
		if !d.Send(fact(t, 1, 1)) {
			t.Fatal("the other was touched")
		}
		s.Drain(context.Background(), 20*time.Millisecond)
		other.waitGone()
		late := newReader(t)
		server, client := pair(t)
		defer client.Close()
		if err := s.Open(server, []byte("x"), Owner{}, late); err != ErrDraining {
			t.Fatal(err)
		}
		late.waitGone()
		if st := s.Stats(); st.Ends[Revoked] != 1 || st.Ends[Drained] != 1 {
			t.Fatalf("%+v", st)
		}
	})
}

// Recheck asks about each owner once, whatever the number of its streams, and cuts the
// streams of owners that are no longer allowed.
func TestRecheck(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Streams) {
		none := func([]Owner) ([]bool, error) { t.Error("asked about nobody"); return nil, nil }
		if n, err := s.Recheck(none); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		owner := func() Owner {
			return Owner{Key: id.KeyID{UUID: id.NewAnywhere()}, Until: time.Now().Add(time.Hour), Since: s.Mark()}
		}
		gone, lives := owner(), owner()
		var readers [4]*reader
		var conns [4]*Conn
		for i := range readers {
			o := lives
			if i < 2 {
				o = gone
			}
			o.Until = o.Until.Add(time.Duration(i) * time.Second) // of one owner, but with different Until
			readers[i] = newReader(t)
			c, client, _ := open(t, s, o, readers[i])
			defer client.Close()
			conns[i] = c
		}
		down := errors.New("down")
		if n, err := s.Recheck(func([]Owner) ([]bool, error) { return nil, down }); n != 0 || err != down || s.Count() != 4 {
			t.Fatal(n, err, s.Count())
		}
		var asked []Owner
		n, err := s.Recheck(func(owners []Owner) ([]bool, error) {
			asked = owners
			yes := make([]bool, len(owners))
			for i, o := range owners {
				yes[i] = o.Key == lives.Key
			}
			return yes, nil
		})
		if n != 2 || err != nil || len(asked) != 2 || asked[0].Key == asked[1].Key {
			t.Fatalf("%d, %v, %+v", n, err, asked)
		}
		readers[0].waitGone()
		readers[1].waitGone()
		if !conns[2].Send(fact(t, 1, 1)) || !conns[3].Send(fact(t, 1, 1)) {
			t.Fatal("a stream of a living owner was cut")
		}
		if n, err := s.Recheck(func(owners []Owner) ([]bool, error) { return nil, nil }); n != 2 || err != nil {
			t.Fatalf("no answer about an owner is no: %d, %v", n, err)
		}
	})
}

// A stream whose caller was authenticated before a Recheck and that opens after it is not in
// its list: it is cut. A stream whose caller authenticated later is not.
func TestAStreamThatOpensDuringARecheckIsCut(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Streams) {
		o := Owner{Key: id.KeyID{UUID: id.NewAnywhere()}, Since: s.Mark()}
		if _, err := s.Recheck(nil); err != nil { // there is no owner to ask about
			t.Fatal(err)
		}
		early, late := newReader(t), newReader(t)
		_, a, _ := open(t, s, o, early)
		defer a.Close()
		early.waitGone()
		o.Since = s.Mark()
		c, b, _ := open(t, s, o, late)
		defer b.Close()
		if !c.Send(fact(t, 1, 1)) || s.Count() != 1 {
			t.Fatal("the later one was cut")
		}
	})
}

// A session's streams end when the session ends, without a call that cuts them.
func TestAStreamEndsWithItsOwner(t *testing.T) {
	both(t, Config{Heartbeat: 64 * time.Millisecond}, func(t *testing.T, s *Streams) {
		over, lives, ever := newReader(t), newReader(t), newReader(t)
		_, a, _ := open(t, s, Owner{Until: time.Now().Add(50 * time.Millisecond)}, over)
		defer a.Close()
		d, b, _ := open(t, s, Owner{Until: time.Now().Add(time.Hour)}, lives)
		defer b.Close()
		e, c, _ := open(t, s, Owner{}, ever)
		defer c.Close()
		over.waitGone()
		if !d.Send(fact(t, 1, 1)) || !e.Send(fact(t, 1, 1)) {
			t.Fatal("the others were touched")
		}
		if st := s.Stats(); st.Ends[Revoked] != 1 || st.Open != 2 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestDrainSpreads(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Streams) {
		for range 10 {
			r := newReader(t)
			_, client, _ := open(t, s, Owner{}, r)
			defer client.Close()
		}
		start := time.Now()
		s.Drain(context.Background(), 200*time.Millisecond)
		if took := time.Since(start); took < 150*time.Millisecond {
			t.Fatalf("all cut within %v", took)
		}
	})
}

// Many publishers, closers and leaving clients at once: no notification is repeated, and no
// descriptor is closed that belongs to another stream.
func TestStorm(t *testing.T) {
	both(t, Config{Heartbeat: 64 * time.Millisecond, Stall: time.Second}, func(t *testing.T, s *Streams) {
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 40 {
					r := newReader(t)
					server, client := pair(t)
					go func() { _ = s.Open(server, []byte("h"), Owner{}, r) }()
					c := <-r.conn
					var in sync.WaitGroup
					in.Go(func() { _, _ = io.Copy(io.Discard, client) })
					in.Go(func() {
						for n := range 50 {
							if !c.Send(fact(t, int64(n+1), 100)) {
								return
							}
						}
					})
					switch (w + i) % 3 {
					case 0:
						c.Close()
					case 1:
						_ = client.Close()
					case 2:
						c.Cut()
					}
					r.waitGone()
					in.Wait()
					_ = client.Close()
				}
			})
		}
		wg.Wait()
		if s.Count() != 0 {
			t.Fatalf("%d are left", s.Count())
		}
	})
}

// A connection without a descriptor of its own falls back to goroutines.
func TestNoDescriptor(t *testing.T) {
	s, err := New(Config{Heartbeat: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	server, client := net.Pipe()
	r := newReader(t)
	go func() { _ = s.Open(server, []byte("head\n"), Owner{}, r) }()
	br := bufio.NewReader(client)
	if l, err := br.ReadString('\n'); err != nil || l != "head\n" {
		t.Fatalf("%v %q", err, l)
	}
	c := <-r.conn
	f := fact(t, 1, 5)
	c.Send(f)
	b := make([]byte, len(f.Bytes()))
	if _, err := io.ReadFull(br, b); err != nil || !bytes.Equal(b, f.Bytes()) {
		t.Fatalf("%v %q", err, b)
	}
	_ = client.Close()
	r.waitGone()
}

// slowConn is a connection whose Write completes only after the stream was cut, like one
// whose copy to the kernel or encryption is in progress.
type slowConn struct {
	net.Conn
	writing chan struct{} // the first write of a chunk has begun
	finish  chan struct{}
	wrote   chan []byte
}

func (c *slowConn) Write(b []byte) (int, error) {
	if len(b) < 1000 {
		return len(b), nil // the head, and the frame that waits alone
	}
	close(c.writing)
	<-c.finish
	c.wrote <- bytes.Clone(b)
	return 0, net.ErrClosed
}

// A write in progress when its stream is cut sends that stream's bytes, never those of the
// next stream.
func TestACutStreamsWriteKeepsItsBytes(t *testing.T) {
	s, err := New(Config{Heartbeat: time.Hour, Goroutines: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	server, client := net.Pipe()
	defer client.Close()
	slow := &slowConn{Conn: server, writing: make(chan struct{}), finish: make(chan struct{}), wrote: make(chan []byte, 1)}
	r := newReader(t)
	go func() { _ = s.Open(slow, []byte("head\n"), Owner{}, r) }()
	c := <-r.conn
	var mine []*event.Frame
	var want bytes.Buffer
	for i := range 10 {
		mine = append(mine, fact(t, int64(i+1), 300))
		if i > 0 { // the first leaves alone, the others in one chunk
			want.Write(mine[i].Bytes())
		}
	}
	if !c.SendAll(mine) {
		t.Fatal("refused")
	}
	<-slow.writing
	c.Cut()
	r.waitGone()
	for range 100 { // under the race detector the pool returns items at random
		b := chunks.Get().(*[chunkSize]byte)
		for i := range b {
			b[i] = '!'
		}
	}
	close(slow.finish)
	if got := <-slow.wrote; !bytes.Equal(got, want.Bytes()) {
		t.Fatalf("a cut stream wrote %.80q", got)
	}
}
