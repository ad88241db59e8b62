package blob

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
)

// copies is how many files are copied at the same time.
const copies = 8

// Copying copies the files of a store into another one. Both may be in use.
type Copying struct {
	From, To *Store
	// Sums returns the checksums of those keys whose rows have one.
	Sums func(ctx context.Context, keys []string) (map[string][sha256.Size]byte, error)
	// Verify reads also the files that are there already. Without it their size is compared, and
	// their checksum where the store knows it.
	Verify bool
	// Failed is called for each file that could not be copied; not concurrently.
	Failed func(key string, err error)

	// Counts so far, also while Run runs.
	Copied, There, Bytes atomic.Int64
}

// Run copies what is not there yet, so a run after an interrupted one continues it. It ends with
// the first error that concerns a whole store. Files that are deleted meanwhile are left out.
func (c *Copying) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var one sync.Mutex // guards Failed
	err := c.From.files.list(ctx, "", func(page []info) error {
		keys := make([]string, len(page))
		for i, f := range page {
			keys[i] = f.name
		}
		sums, err := c.Sums(ctx, keys)
		if err != nil {
			return err
		}
		var busy sync.WaitGroup
		free := make(chan struct{}, copies)
		for _, f := range page {
			free <- struct{}{}
			busy.Go(func() {
				defer func() { <-free }()
				var want *[sha256.Size]byte
				if sum, ok := sums[f.name]; ok {
					want = &sum
				}
				switch err := c.file(ctx, f, want); {
				case errors.Is(err, ErrCorrupt):
					one.Lock()
					defer one.Unlock()
					c.Failed(f.name, err)
				case err != nil:
					cancel(err) // the others end with ctx, and the first cause is reported
				}
			})
		}
		busy.Wait()
		return context.Cause(ctx)
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// file copies a file unless it is there. want is its checksum, nil if the rows do not say it.
func (c *Copying) file(ctx context.Context, f info, want *[sha256.Size]byte) error {
	switch there, err := c.To.files.stat(ctx, f.name); {
	case err != nil && !absent(err):
		return err
	case err == nil && there.size == f.size && (there.sum == nil || want == nil || *there.sum == *want):
		same := true
		if c.Verify {
			if same, err = c.same(ctx, f.name, want); err != nil {
				return err
			}
		}
		if same {
			c.There.Add(1)
			return nil
		}
	}
	r, _, err := c.From.Open(ctx, f.name)
	if err != nil {
		if absent(err) {
			return nil
		}
		return err
	}
	defer r.Close()
	got, err := c.To.collect(ctx, r, math.MaxInt64-1)
	if err != nil {
		return fmt.Errorf("copy %s: %w", f.name, err)
	}
	defer c.To.done(got.name)
	if want != nil && got.sum != *want {
		err = ErrCorrupt
	} else {
		err = c.To.files.publish(ctx, got.f, got.name, f.name, got.size, got.sum)
	}
	if err != nil {
		c.To.files.discard(got.f, got.name)
		return fmt.Errorf("copy %s: %w", f.name, err)
	}
	c.Copied.Add(1)
	c.Bytes.Add(got.size)
	return nil
}

// same reads a file that is there, and compares it with the checksum, or else with the original.
func (c *Copying) same(ctx context.Context, key string, want *[sha256.Size]byte) (bool, error) {
	there, err := c.To.sum(ctx, key)
	if err != nil || there == nil {
		return false, err
	}
	if want == nil {
		if want, err = c.From.sum(ctx, key); err != nil || want == nil {
			return err == nil, err // deleted meanwhile
		}
	}
	return *there == *want, nil
}

// sum reads a file and returns its checksum, nil if it is damaged or not there.
func (s *Store) sum(ctx context.Context, key string) (*[sha256.Size]byte, error) {
	r, _, err := s.Open(ctx, key)
	if err != nil {
		if absent(err) {
			return nil, nil
		}
		return nil, err
	}
	defer r.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, reader{ctx, r}); errors.Is(err, ErrCorrupt) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return (*[sha256.Size]byte)(hash.Sum(nil)), nil
}
