package sweep

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
	"agentsvc/schemas/testkit"
)

// tidied counts what was asked of the files.
type tidied struct {
	sweeps, walks atomic.Int32
	down          atomic.Bool
}

func (f *tidied) Sweep(context.Context) (int, error) {
	f.sweeps.Add(1)
	if f.down.Load() {
		return 0, errors.New("down")
	}
	return 0, nil
}
func (f *tidied) Walk(context.Context) (int, error) { f.walks.Add(1); return 1, nil }

// What was left before a start goes within a minute of it, whichever shards the node has;
// later walks are made by the node with the first shard, more often than once an hour.
func TestFilesAreTidied(t *testing.T) {
	for _, owner := range []bool{true, false} {
		var passed atomic.Int64
		f, files := &fake{lost: map[id.Shard]bool{0: !owner}}, &tidied{}
		s := New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f, Files: files, Log: zerolog.Nop(), FilesEvery: time.Millisecond,
			Now: func() time.Time { return noon.Add(time.Duration(passed.Load())) }})
		if s.cfg.FilesEvery = time.Millisecond; New(Config{Rows: f, Kinds: f.kinds(), Retentions: f.retentions, Node: f}).cfg.FilesEvery+firstWalk > 58*time.Second || walkEvery > 55*time.Minute {
			t.Error("it comes too late")
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		// rounds waits for two whole rounds of the loop.
		rounds := func() {
			t.Helper()
			from := files.sweeps.Load()
			testkit.Eventually(t, "it goes on", func() bool { return files.sweeps.Load() >= from+3 })
		}
		later := int32(0)
		if owner {
			later = 1
		}
		for i, c := range []struct {
			after time.Duration
			down  bool
			walks int32
		}{{0, false, 0}, {firstWalk, true, 0}, {0, false, 1}, {walkEvery - time.Second, false, 1}, {time.Second, false, 1 + later}, {walkEvery, false, 1 + 2*later}} {
			files.down.Store(c.down)
			rounds() // no round that found the files before goes on
			passed.Add(int64(c.after))
			rounds()
			if got := files.walks.Load(); got != c.walks {
				t.Errorf("owner %v, %d: %d walks, want %d", owner, i, got, c.walks)
			}
		}
		s.Stop()
	}
}
