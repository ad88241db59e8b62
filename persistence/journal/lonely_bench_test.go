package journal

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/pgtest"
)

// lonely is one way to a durable commit. ready readies, unmeasured, what the next
// one needs, and answers it.
type lonely struct {
	name  string
	ready func() (commit func() error)
	pid   func() uint32 // of the backend that commits
	took  []time.Duration
	cpu   [2]time.Duration // of this process and of the backend
}

// pace is how often the lonely caller comes: between two of its commits everything
// falls asleep.
const pace = 20 * time.Millisecond

// BenchmarkLonely is the price of a commit that shares its flush with nobody,
// beside that of a plain INSERT of the driver without a BEGIN. The ways take turns
// on one database that syncs. Each is shown as its median and as its ratio to the
// plain one's. Run it with -benchtime=300x.
func BenchmarkLonely(b *testing.B) {
	for _, between := range []time.Duration{pace, 0} {
		b.Run(fmt.Sprintf("every %s", between), func(b *testing.B) {
			cluster := pgtest.Private(b, pgtest.PrivateOptions{Fsync: true})
			one := worldIn(b, &cluster.DB, func(c *Config) { c.Lanes = 1 })
			ways := []*lonely{
				plain(b, one, cluster),
				{name: "audit", pid: backendOf(one), ready: func() func() error { return doing(one, one.auditOnly(0)) }},
				{name: "decision", pid: backendOf(one), ready: func() func() error { return doing(one, decision(one)) }},
			}
			for round := range b.N + 10 {
				for i := range ways {
					w := ways[(i+round)%len(ways)]
					commit := w.ready()
					time.Sleep(between)
					own, other := cpu(b), cpuOf(b, w.pid())
					start := time.Now()
					if err := commit(); err != nil {
						b.Fatalf("%s: %v", w.name, err)
					}
					if took := time.Since(start); round >= 10 {
						w.took = append(w.took, took)
						w.cpu[0] += cpu(b) - own
						w.cpu[1] += cpuOf(b, w.pid()) - other
					}
				}
			}
			unit := median(ways[0].took)
			for _, w := range ways {
				b.ReportMetric(float64(median(w.took).Microseconds()), w.name+"-µs")
				b.ReportMetric(float64(median(w.took))/float64(unit), w.name+"-ratio")
				b.ReportMetric(float64(w.cpu[0].Microseconds())/float64(b.N), w.name+"-own-cpu-µs")
				b.ReportMetric(float64(w.cpu[1].Microseconds())/float64(b.N), w.name+"-backend-cpu-µs")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func doing(x *world, c *draft) func() error { return func() error { return x.do(c) } }

func backendOf(x *world) func() uint32 { return func() uint32 { return x.w.lanes[0].conn.backend.pid } }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// plain is one row of the audit log, inserted by the driver.
func plain(b *testing.B, x *world, cluster *pgtest.Cluster) *lonely {
	pool := cluster.Pool(b, pg.Options{Role: pg.System, Writer: true, MaxConns: 1})
	conn, err := pool.Acquire(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Release)
	return &lonely{name: "plain", pid: conn.Conn().PgConn().PID, ready: func() func() error {
		a := x.audit()
		return func() error {
			_, err := conn.Exec(context.Background(), `INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id, ip)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, x.tenant, a.ID, a.At, a.Actor, a.Action, a.TargetKind, a.TargetID, a.IP)
			return err
		}
	}}
}

// decision is the commit of the decision that a gated call waits for.
func decision(x *world) *draft {
	w := x.newWaits(0)
	c := w.decide(nil)
	c.Idempotency = key(w.run.String())
	return c
}

// cpu is what this process has used so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpuOf is what a process of one thread has used so far.
func cpuOf(b *testing.B, pid uint32) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		b.Skip("the use of other processes cannot be read here")
	}
	var ns int64
	if _, err := fmt.Sscan(string(text), &ns); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ns)
}
