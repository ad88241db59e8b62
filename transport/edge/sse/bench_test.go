package sse

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"agentsvc/schemas/event"
)

// readers opens n streams whose clients read everything.
func readers(b *testing.B, s *Streams, n int, drain bool) []*Conn {
	conns := make([]*Conn, n)
	for i := range conns {
		r := newReader(b)
		c, client, br := open(b, s, Owner{}, r)
		conns[i] = c
		_ = client.SetReadDeadline(time.Time{})
		b.Cleanup(func() { _ = client.Close() })
		if drain {
			go func() { _, _ = io.Copy(io.Discard, br) }()
		}
	}
	return conns
}

// BenchmarkPublish sends one frame to n readers on loopback. The time includes the readers'
// own goroutines.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, err := New(Config{Heartbeat: time.Hour})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(s.Stop)
			conns := readers(b, s, n, true)
			f := event.Delta(event.LLMDelta, event.Pos{Seq: 1, Offset: 5}, 0, "hello")
			one := make([]*event.Frame, 1) // publishing outruns a single reader: wait for it instead of cutting it
			b.ReportAllocs()
			for b.Loop() {
				for _, c := range conns {
					one[0] = f
					if n > 1 && !c.Send(f) || n == 1 && !c.Backfill(one) {
						b.Fatal("a reader was cut")
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/frame")
		})
	}
}

// BenchmarkIdleStream measures the heap of idle streams, clients included: both ends are in
// this process.
func BenchmarkIdleStream(b *testing.B) {
	heap := func() uint64 {
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const n = 8000
	for b.Loop() {
		s, err := New(Config{Heartbeat: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		goroutines := runtime.NumGoroutine()
		before := heap()
		conns := make([]*Conn, n)
		subs := make([]*quietSub, n)
		clients := make([]io.Closer, n)
		for i := range conns {
			server, client := pair(b)
			subs[i] = &quietSub{}
			if err := s.Open(server, []byte("head\n\n"), Owner{}, subs[i]); err != nil {
				b.Fatal(err)
			}
			clients[i] = client
		}
		open := heap()
		for i := range clients {
			_ = clients[i].Close()
			clients[i] = nil
		}
		b.ReportMetric(float64(open-before)/n, "B/stream+client")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		s.Stop()
		runtime.KeepAlive(conns)
	}
}

type quietSub struct{}

func (*quietSub) Attach(*Conn) {}
func (*quietSub) Gone()        {}
