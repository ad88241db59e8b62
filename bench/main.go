// Command bench measures the service against the budgets of RESULTS.md: over
// HTTP, in processes of its own, on a fresh Postgres with fsync on. Figures that
// are compared are measured side by side in one run. Its module is separate so
// that the peers' libraries stay out of the service.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// scenarios in the order of `all`.
var scenarios = []struct {
	name, about string
	run         func(ctx context.Context, b *bed) error
}{
	{"runs", "runs/s over the full HTTP path against River on the same Postgres", benchRuns},
	{"latency", "POST to terminal at 100 runs/s against the single commit", benchLatency},
	{"decay", "runs/s from 0 to 100,000 runs on a fresh database", benchDecay},
	{"idle-streams", "memory per idle event stream", benchIdleStreams},
	{"streams", "1,000 runs x 50 tokens/s with one reader each", benchStreams},
	{"delivery", "from the model's wire to the reader", benchDelivery},
	{"fanout", "one run with 1,000 readers", benchFanout},
	{"memory", "heap after 10,000 threads with finished runs", benchMemory},
	{"approvals", "from a decision to the tool called, and 100 runs decided in bulk", benchApprovals},
	{"waiting", "what 100,000 runs that wait for an approval cost", benchWaiting},
	{"workflows", "tool nodes against River's jobs, a fan-out, runs that wait, and from a gate's decision to the next node", benchWorkflows},
	{"webhooks", "a backlog of webhook deliveries, and healthy endpoints beside a dead and a slow one", benchWebhooks},
	{"embed", "streams and messages of visitors", benchEmbed},
	{"overload", "posts from more clients than can be served", benchOverload},
	{"cluster", "three nodes against one, and a request through another node than the owner", benchCluster},
	{"quiet", "a quiet tenant beside one that floods", benchQuiet},
	{"skills", "runs beside four runs of browser skills against without", benchSkills},
	{"feed", "runs of a tenant with 200 consoles against without", benchFeed},
	{"soak", "three nodes under an even load: does anything grow", benchSoak},
	{"knowledge", "searches among 1,000,000 chunks of 100 tenants, and beside runs and ingestion", benchKnowledge},
	{"ingestion", "memory and time of a 49 MiB text and a PDF of 500 pages, and runs beside them", benchIngestion},
	{"first-token", "from the start of svc dev to the first streamed token", benchFirstToken},
}

func main() {
	svc := flag.String("svc", "../bin/svc", "the service's binary")
	dir := flag.String("dir", "", "where the Postgres cluster lies (default a fresh temporary directory)")
	total := flag.Int("runs", 20000, "runs of the scenario runs")
	quiet := flag.Int("quiet", 900, "runs of the quiet tenant in the scenario quiet (3000 for the budget)")
	soak := flag.Duration("soak", 10*time.Minute, "how long the scenario soak lasts")
	chunks := flag.Int("chunks", 1_000_000, "chunks of the 100 tenants in the scenario knowledge")
	great := flag.Int("great", 0, "chunks of a further base in the scenario knowledge, of a tenant of its own (0: there is none)")
	keep := flag.String("keep", "", "a directory for the database of the scenario knowledge, which is left there and used again")
	other := flag.String("other", "", "another binary of the service, to be compared in the scenario knowledge")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if flag.Arg(0) == peerCommand {
		exit(riverPeer(ctx, flag.Arg(1), flag.Arg(2)))
	}
	if flag.Arg(0) == floodCommand {
		exit(floodPeer(ctx))
	}
	if flag.Arg(0) == visitorsCommand {
		exit(visitorsPeer(ctx))
	}
	if flag.Arg(0) == consolesCommand {
		exit(consolesPeer(ctx))
	}
	names := flag.Args()
	if len(names) == 0 {
		fmt.Fprintln(os.Stderr, "usage: bench [-svc FILE] all | SCENARIO…")
		for _, s := range scenarios {
			fmt.Fprintf(os.Stderr, "  %-13s %s\n", s.name, s.about)
		}
		os.Exit(2)
	}
	exit(func() error {
		for _, s := range scenarios {
			if !slices.Contains(names, s.name) && !slices.Contains(names, "all") {
				continue
			}
			fmt.Printf("\n## %s: %s\n", s.name, s.about)
			kept := ""
			if s.name == "knowledge" {
				kept = *keep
			}
			b, err := newBed(ctx, *svc, *dir, kept)
			if err != nil {
				return err
			}
			b.total, b.quiet, b.soak, b.chunks, b.great, b.other = *total, *quiet, *soak, *chunks, *great, *other
			err = s.run(ctx, b)
			b.close()
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	}())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
