package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/stream"
	"agentsvc/cluster"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/transport/edge"
)

// BenchmarkDelivery writes 50 tokens a second into each of 1,000 runs and has
// another process read each run's stream over a socket: the time from a token's
// write to its reader, and frames per second and core of this process. A token
// holds the clock at which it was written.
func BenchmarkDelivery(b *testing.B) {
	if os.Getenv(readersOf) != "" {
		readTokens(b)
		return
	}
	const runs, every, warm, measured = 1000, 20 * time.Millisecond, 2 * time.Second, 5 * time.Second
	node := cluster.New(cluster.Config{Member: id.MemberID{UUID: id.NewAnywhere()}, Log: zerolog.Nop()})
	hubs := stream.New(stream.Config{Node: node, Source: openRuns{}, Heads: openRuns{}, Log: zerolog.Nop()})
	if err := errors.Join(node.Start(b.Context()), hubs.Start(b.Context())); err != nil {
		b.Fatal(err)
	}
	tenant := id.TenantID{UUID: id.NewAnywhere()}
	table := edge.NewTable()
	type watch struct {
		ID id.RunID `path:"id"`
	}
	edge.HandleStream(table, edge.Route{Method: "GET", Path: "/runs/{id}", ID: "watch", Summary: "watch", Tag: "bench"},
		func(ctx context.Context, _ *edge.Caller, in *watch) (edge.Subscriber, error) {
			return streams{hubs: hubs}.Open(ctx, tenant, in.ID, event.Cursor{Since: -1})
		})
	server, err := edge.NewServer(edge.Config{Table: table, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go server.Serve(ln)
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(server.Shutdown(ctx), node.Stop(ctx)); err != nil {
			b.Error(err)
		}
		hubs.Stop()
	})

	sinks := make([]model.Sink, runs)
	readers := exec.Command(os.Args[0], "-test.run", "^$", "-test.bench", "^BenchmarkDelivery$", "-test.benchtime", "1x")
	readers.Env = append(os.Environ(), readersOf+"="+ln.Addr().String())
	readers.Stderr = os.Stderr
	in, err := readers.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := readers.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := readers.Start(); err != nil {
		b.Fatal(err)
	}
	for i := range sinks {
		run := id.RunID{UUID: id.NewAnywhere()}
		hubs.Publish(tenant, run, event.Started(run, nil), event.StepBegan(2, 0, lifecycle.StepLLM, "bench"))
		sinks[i] = hubs.Begin(tenant, run, 2, 0, true)
		fmt.Fprintln(in, run)
	}
	in.Close()

	said := bufio.NewScanner(out)
	stop := make(chan struct{})
	var written atomic.Int64
	var writers sync.WaitGroup
	const each = 10 // runs that one goroutine writes to
	for first := 0; first < runs; first += each {
		writers.Go(func() {
			tick := time.NewTicker(every / each)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-tick.C:
				case <-stop:
					return
				}
				written.Add(1)
				sinks[first+n%each].Text("@" + strconv.FormatInt(time.Now().UnixNano(), 10) + " ")
			}
		})
	}
	if !said.Scan() || said.Text() != "open" {
		b.Fatalf("the readers said %q", said.Text())
	}
	time.Sleep(warm)
	cpu, start, before := processTime(b), time.Now(), written.Load()
	time.Sleep(measured)
	cpu, frames, took := processTime(b)-cpu, written.Load()-before, time.Since(start)
	close(stop)
	writers.Wait()
	readers.Process.Signal(syscall.SIGTERM)
	var read int
	var p50, p99 time.Duration
	for said.Scan() {
		if _, err := fmt.Sscanf(said.Text(), "read %d %d %d", &read, &p50, &p99); err == nil {
			break
		}
	}
	go io.Copy(io.Discard, out)
	if err := readers.Wait(); err != nil || read == 0 {
		b.Fatalf("the readers: %v, %d frames", err, read)
	}
	b.ReportMetric(float64(frames)/took.Seconds(), "frames/s")
	b.ReportMetric(float64(frames)/cpu.Seconds(), "frames/s/core")
	b.ReportMetric(float64(p50.Microseconds()), "p50-µs")
	b.ReportMetric(float64(p99.Microseconds()), "p99-µs")
	b.ReportMetric(0, "ns/op")
}

// readersOf names the server to a process that only reads.
const readersOf = "SVC_BENCH_READERS_OF"

// readTokens reads the streams of the runs on standard input until it is told to
// end, and says how long their tokens took. The first second of a stream counts
// as its opening.
func readTokens(b *testing.B) {
	var took [][]time.Duration
	var conns []net.Conn
	var readers sync.WaitGroup
	runs := bufio.NewScanner(os.Stdin)
	for runs.Scan() {
		c, err := net.Dial("tcp", os.Getenv(readersOf))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "GET /runs/%s HTTP/1.1\r\nHost: bench\r\n\r\n", runs.Text()); err != nil {
			b.Fatal(err)
		}
		conns = append(conns, c)
	}
	took = make([][]time.Duration, len(conns))
	from := time.Now().Add(time.Second)
	for i, c := range conns {
		took[i] = make([]time.Duration, 0, 1024)
		readers.Go(func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := c.Read(buf)
				now := time.Now()
				if err != nil {
					return
				}
				for rest := buf[:n]; now.After(from); {
					_, after, ok := bytes.Cut(rest, []byte(`"text":"@`))
					end := bytes.IndexByte(after, ' ')
					if !ok || end < 0 {
						break
					}
					if at, err := strconv.ParseInt(string(after[:end]), 10, 64); err == nil {
						took[i] = append(took[i], now.Sub(time.Unix(0, at)))
					}
					rest = after
				}
			}
		})
	}
	fmt.Println("open")
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	<-told
	for _, c := range conns {
		c.Close()
	}
	readers.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	fmt.Printf("read %d %d %d\n", len(all), all[len(all)/2], all[len(all)*99/100])
	os.Exit(0)
}

// openRuns are runs in the middle of their first step.
type openRuns struct{}

func (openRuns) Facts(_ context.Context, _ id.TenantID, run id.RunID, _ event.Cursor) (*event.Facts, error) {
	return &event.Facts{Run: run, Status: lifecycle.RunRunning, Started: true, Seq: 2,
		Steps: []event.StepFacts{{Kind: lifecycle.StepLLM, Name: "bench", Status: lifecycle.StepRunning, BeganSeq: 2}}}, nil
}

func (openRuns) Heads(_ context.Context, keys []feed.Key) ([]feed.Head, error) {
	heads := make([]feed.Head, len(keys))
	for i, k := range keys {
		heads[i] = feed.Head{Run: k.Run, Seq: 2}
	}
	return heads, nil
}

func processTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
