package blob

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Names under .tmp are <owner>~<random>, and <owner>~<random>~ for notes.
const mark = "~"

const (
	// doubtful is how long a commit of unknown outcome may still take effect.
	doubtful = 10 * time.Minute
	// young is the age up to which Walk leaves a blob alone, and Sweep a file without an
	// owner: a directory listing on another machine may be that old.
	young = 40 * time.Second
	// walkPage is how many blobs Walk checks at a time.
	walkPage = 1000
	// settleTime bounds the removal of notes, whose callers do not wait for its result.
	settleTime = 5 * time.Second
)

// Rows tells which blobs are needed (store.Files).
type Rows interface {
	// Dead returns those of the owners that have ended and write nothing any more.
	Dead(ctx context.Context, owners []string) ([]string, error)
	// Orphans returns the keys that no row names, without keys unknown to the database.
	Orphans(ctx context.Context, keys []string) ([]string, error)
}

// begin returns a name under .tmp for a file that this process writes.
func (s *Store) begin() string {
	var random [16]byte
	rand.Read(random[:])
	name := path.Join(temporary, s.owner+mark+hex.EncodeToString(random[:]))
	s.mu.Lock()
	s.writing[name] = true
	s.mu.Unlock()
	return name
}

func (s *Store) done(name string) {
	s.mu.Lock()
	delete(s.writing, name)
	s.mu.Unlock()
}

// note writes a note that the row of a key may not be committed yet. It is durable before the
// blob is.
func (s *Store) note(ctx context.Context, key string) error {
	name := s.begin()
	defer s.done(name)
	note := name + mark
	s.mu.Lock()
	s.notes[key] = append(s.notes[key], note) // before the file exists, so that Sweep recognises it as ours
	s.mu.Unlock()
	err := s.files.write(ctx, note, key)
	if err != nil {
		s.Settle(key, true)
	}
	return err
}

// Settle reports that the row of a stored blob is committed, or never will be. known is false
// if the outcome is unknown: then a later Sweep checks.
func (s *Store) Settle(key string, known bool) {
	s.mu.Lock()
	if !known {
		s.doubts = append(s.doubts, doubt{key, time.Now()})
		s.mu.Unlock()
		return
	}
	notes := s.notes[key]
	delete(s.notes, key)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	for _, n := range notes {
		_ = s.files.remove(ctx, n) // the next Sweep checks a note that stays
	}
}

// Sweep removes what dead processes left: unfinished files, and blobs whose row was not
// committed. It also checks the doubts of this process. Its cost depends on the work in
// progress, not on the number of blobs.
func (s *Store) Sweep(ctx context.Context, rows Rows) (removed int, err error) {
	defer observe("sweep", time.Now(), &err)
	removed, err = s.resolve(ctx, rows)
	if err != nil {
		return removed, err
	}
	files, err := s.foreign(ctx)
	if err != nil || len(files) == 0 {
		return removed, err
	}
	var owners []string
	for _, f := range files {
		if owner, _, owned := strings.Cut(path.Base(f.name), mark); owned && owner != s.owner && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	// Ask after listing the files: an owner that starts later has none of them.
	dead, err := rows.Dead(ctx, owners)
	if err != nil {
		return removed, fmt.Errorf("look for owners of unfinished files: %w", err)
	}
	now := time.Time{}
	for _, f := range files {
		owner, _, owned := strings.Cut(path.Base(f.name), mark)
		switch {
		case owner == s.owner: // left by a Put or a Settle that could not clean up
		case owned:
			if !slices.Contains(dead, owner) {
				continue
			}
		default:
			if now.IsZero() {
				if now, err = s.clock(ctx); err != nil {
					return removed, err
				}
			}
			if now.Sub(f.modified) < young {
				continue
			}
		}
		if strings.HasSuffix(f.name, mark) {
			n, err := s.unwanted(ctx, rows, f.name)
			if removed += n; err != nil {
				return removed, err
			}
		}
		if err := s.files.remove(ctx, f.name); err != nil {
			return removed, fmt.Errorf("remove an unfinished file: %w", err)
		}
		removed++
	}
	return removed, nil
}

// foreign returns the files under .tmp that no Put of this process is using.
func (s *Store) foreign(ctx context.Context) (files []info, err error) {
	err = s.files.list(ctx, temporary, func(page []info) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, f := range page {
			if !s.writing[f.name] && !s.noted(f.name) {
				files = append(files, f)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for unfinished files: %w", err)
	}
	return files, nil
}

// noted reports whether a note is this process's; the caller holds mu.
func (s *Store) noted(note string) bool {
	for _, notes := range s.notes {
		if slices.Contains(notes, note) {
			return true
		}
	}
	return false
}

// unwanted removes the blob of a note if no row names it.
func (s *Store) unwanted(ctx context.Context, rows Rows, note string) (removed int, err error) {
	key, err := s.files.read(ctx, note)
	if err != nil {
		if absent(err) {
			return 0, nil // another node was first
		}
		return 0, fmt.Errorf("read a note: %w", err)
	}
	return s.clear(ctx, rows, key)
}

// clear removes what an unfinished Put left of a key, and its blob if no row names it.
func (s *Store) clear(ctx context.Context, rows Rows, key string) (removed int, err error) {
	if err := s.files.abandon(ctx, key); err != nil {
		return 0, fmt.Errorf("end an unfinished upload: %w", err)
	}
	return s.drop(ctx, rows, []string{key})
}

// drop removes the blobs that no row names.
func (s *Store) drop(ctx context.Context, rows Rows, keys []string) (removed int, err error) {
	gone, err := rows.Orphans(ctx, keys)
	if err != nil {
		return 0, fmt.Errorf("look for the rows of files: %w", err)
	}
	for _, key := range gone {
		if err := s.Delete(ctx, key); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// resolve checks the doubts of this process whose commits must have ended by now.
func (s *Store) resolve(ctx context.Context, rows Rows) (removed int, err error) {
	s.mu.Lock()
	var due []string
	for _, o := range s.doubts {
		if time.Since(o.since) >= doubtful {
			due = append(due, o.key)
		}
	}
	s.mu.Unlock()
	for _, key := range due {
		n, err := s.clear(ctx, rows, key)
		if removed += n; err != nil {
			return removed, err // the next Sweep retries
		}
		s.mu.Lock()
		s.doubts = slices.DeleteFunc(s.doubts, func(o doubt) bool { return o.key == key })
		s.mu.Unlock()
		s.Settle(key, true)
	}
	return removed, nil
}

// Walk checks all blobs and removes those that no row names and no process is about to
// commit. Such blobs have no note: they were restored, or their rows were deleted. It reads
// the names of all blobs and is called rarely.
func (s *Store) Walk(ctx context.Context, rows Rows) (removed int, err error) {
	defer observe("walk", time.Now(), &err)
	err = s.files.list(ctx, "", func(page []info) error {
		modified := make(map[string]time.Time, len(page))
		keys := make([]string, len(page))
		for i, f := range page {
			keys[i], modified[f.name] = f.name, f.modified
		}
		orphans, err := rows.Orphans(ctx, keys)
		if err != nil || len(orphans) == 0 {
			return err
		}
		now, err := s.clock(ctx)
		if err != nil {
			return err
		}
		pending, err := s.pending(ctx)
		if err != nil {
			return err
		}
		orphans = slices.DeleteFunc(orphans, func(key string) bool {
			return now.Sub(modified[key]) < young || pending[key]
		})
		// Ask again after reading the notes: a blob whose note is gone has its row.
		n, err := s.drop(ctx, rows, orphans)
		removed += n
		return err
	})
	return removed, err
}

// pending returns the keys of all notes.
func (s *Store) pending(ctx context.Context) (map[string]bool, error) {
	keys := map[string]bool{}
	err := s.files.list(ctx, temporary, func(page []info) error {
		for _, f := range page {
			if !strings.HasSuffix(f.name, mark) {
				continue
			}
			key, err := s.files.read(ctx, f.name)
			if err != nil && !absent(err) {
				return fmt.Errorf("read a note: %w", err)
			}
			keys[key] = true
		}
		return nil
	})
	return keys, err
}

// clock returns the time of the store, which may be on another machine.
func (s *Store) clock(ctx context.Context) (time.Time, error) {
	name := s.begin()
	defer s.done(name)
	if err := s.files.write(ctx, name, "x"); err != nil {
		return time.Time{}, fmt.Errorf("read the clock of the store of files: %w", err)
	}
	i, err := s.files.stat(ctx, name)
	if err = errors.Join(err, s.files.remove(ctx, name)); err != nil {
		return time.Time{}, fmt.Errorf("read the clock of the store of files: %w", err)
	}
	return i.modified, nil
}
