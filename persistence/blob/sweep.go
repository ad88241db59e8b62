package blob

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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
)

// Rows tells which blobs are needed (store.Files).
type Rows interface {
	// Dead returns those of the owners that have ended and write nothing any more.
	Dead(ctx context.Context, owners []string) ([]string, error)
	// Orphans returns the keys that no row names, without keys unknown to the database.
	Orphans(ctx context.Context, keys []string) ([]string, error)
}

// begin returns a name under .tmp for a file that this process writes.
func (d *Dir) begin() (string, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	name := path.Join(temporary, d.owner+mark+hex.EncodeToString(random[:]))
	d.mu.Lock()
	d.writing[name] = true
	d.mu.Unlock()
	return name, nil
}

func (d *Dir) done(name string) {
	d.mu.Lock()
	delete(d.writing, name)
	d.mu.Unlock()
}

// note writes a note that the row of a key may not be committed yet. It is durable before the
// blob is.
func (d *Dir) note(key string) error {
	name, err := d.begin()
	if err != nil {
		return err
	}
	defer d.done(name)
	note := name + mark
	f, err := d.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(key)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	d.mu.Lock()
	d.notes[key] = append(d.notes[key], note) // before the file exists, so that Sweep recognises it as ours
	d.mu.Unlock()
	if err == nil {
		err = d.root.Rename(name, note)
	}
	if err == nil {
		err = d.sync(temporary)
	}
	if err != nil {
		d.root.Remove(name)
		d.Settle(key, true)
	}
	return err
}

// Settle reports that the row of a stored blob is committed, or never will be. known is false
// if the outcome is unknown: then a later Sweep checks.
func (d *Dir) Settle(key string, known bool) {
	d.mu.Lock()
	if !known {
		d.doubts = append(d.doubts, doubt{key, time.Now()})
		d.mu.Unlock()
		return
	}
	notes := d.notes[key]
	delete(d.notes, key)
	d.mu.Unlock()
	for _, n := range notes {
		d.root.Remove(n) // a note that stays is checked after this process has ended
	}
}

// Sweep removes what dead processes left: unfinished files, and blobs whose row was not
// committed. It also checks the doubts of this process. Its cost depends on the work in
// progress, not on the number of blobs.
func (d *Dir) Sweep(ctx context.Context, rows Rows) (removed int, err error) {
	removed, err = d.resolve(ctx, rows)
	if err != nil {
		return removed, err
	}
	files, err := d.foreign()
	if err != nil || len(files) == 0 {
		return removed, err
	}
	var owners []string
	for name := range files {
		if owner, _, owned := strings.Cut(name, mark); owned && owner != d.owner && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	// Ask after listing the files: an owner that starts later has none of them.
	dead, err := rows.Dead(ctx, owners)
	if err != nil {
		return removed, fmt.Errorf("look for owners of unfinished files: %w", err)
	}
	now := time.Time{}
	for name, info := range files {
		owner, _, owned := strings.Cut(name, mark)
		switch {
		case owner == d.owner: // left by a Put that could not clean up
		case owned:
			if !slices.Contains(dead, owner) {
				continue
			}
		default:
			if now.IsZero() {
				if now, err = d.clock(); err != nil {
					return removed, err
				}
			}
			if now.Sub(info.ModTime()) < young {
				continue
			}
		}
		at := path.Join(temporary, name)
		if strings.HasSuffix(name, mark) {
			n, err := d.unwanted(ctx, rows, at)
			if removed += n; err != nil {
				return removed, err
			}
		}
		switch err := d.root.Remove(at); {
		case err == nil:
			removed++
		case !absent(err): // another node removed it first
			return removed, fmt.Errorf("remove an unfinished file: %w", err)
		}
	}
	return removed, nil
}

// foreign returns the files under .tmp that no Put of this process is using.
func (d *Dir) foreign() (map[string]fs.FileInfo, error) {
	entries, err := fs.ReadDir(d.root.FS(), temporary)
	if err != nil {
		return nil, fmt.Errorf("look for unfinished files: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string]fs.FileInfo{}
	for _, e := range entries {
		at := path.Join(temporary, e.Name())
		if d.writing[at] || d.noted(at) {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // just finished, or not one of ours
		}
		files[e.Name()] = info
	}
	return files, nil
}

// noted reports whether a note is this process's; the caller holds mu.
func (d *Dir) noted(note string) bool {
	for _, notes := range d.notes {
		if slices.Contains(notes, note) {
			return true
		}
	}
	return false
}

// unwanted removes the blob of a note if no row names it.
func (d *Dir) unwanted(ctx context.Context, rows Rows, note string) (removed int, err error) {
	key, err := d.root.ReadFile(note)
	if err != nil {
		if absent(err) {
			return 0, nil // another node was first
		}
		return 0, fmt.Errorf("read a note: %w", err)
	}
	return d.drop(ctx, rows, []string{string(key)})
}

// drop removes the blobs that no row names.
func (d *Dir) drop(ctx context.Context, rows Rows, keys []string) (removed int, err error) {
	gone, err := rows.Orphans(ctx, keys)
	if err != nil {
		return 0, fmt.Errorf("look for the rows of files: %w", err)
	}
	for _, key := range gone {
		if err := d.Delete(key); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// resolve checks the doubts of this process whose commits must have ended by now.
func (d *Dir) resolve(ctx context.Context, rows Rows) (removed int, err error) {
	d.mu.Lock()
	var due []string
	for _, o := range d.doubts {
		if time.Since(o.since) >= doubtful {
			due = append(due, o.key)
		}
	}
	d.mu.Unlock()
	for _, key := range due {
		n, err := d.drop(ctx, rows, []string{key})
		if removed += n; err != nil {
			return removed, err // the next Sweep retries
		}
		d.mu.Lock()
		d.doubts = slices.DeleteFunc(d.doubts, func(o doubt) bool { return o.key == key })
		d.mu.Unlock()
		d.Settle(key, true)
	}
	return removed, nil
}

// Walk checks all blobs and removes those that no row names and no process is about to
// commit. Such blobs have no note: they were restored, or their rows were deleted. It reads
// the names of all blobs and is called rarely.
func (d *Dir) Walk(ctx context.Context, rows Rows) (removed int, err error) {
	err = d.walk(ctx, ".", func(keys []string) error {
		orphans, err := rows.Orphans(ctx, keys)
		if err != nil || len(orphans) == 0 {
			return err
		}
		now, err := d.clock()
		if err != nil {
			return err
		}
		pending, err := d.pending()
		if err != nil {
			return err
		}
		orphans = slices.DeleteFunc(orphans, func(key string) bool {
			info, err := d.root.Lstat(key)
			return err != nil || now.Sub(info.ModTime()) < young || pending[key]
		})
		// Ask again after reading the notes: a blob whose note is gone has its row.
		n, err := d.drop(ctx, rows, orphans)
		removed += n
		return err
	})
	return removed, err
}

// walk calls page with the keys below a directory, in batches.
func (d *Dir) walk(ctx context.Context, dir string, page func(keys []string) error) error {
	f, err := d.root.Open(dir)
	if err != nil {
		if absent(err) {
			return nil
		}
		return fmt.Errorf("look for files: %w", err)
	}
	defer f.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := f.ReadDir(walkPage)
		var keys []string
		for _, e := range entries {
			key := path.Join(dir, e.Name())
			switch {
			case check(key) != nil: // not one of ours
			case e.IsDir():
				if err := d.walk(ctx, key, page); err != nil {
					return err
				}
			case e.Type().IsRegular():
				keys = append(keys, key)
			}
		}
		if len(keys) > 0 {
			if err := page(keys); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for files: %w", err)
		}
	}
}

// pending returns the keys of all notes.
func (d *Dir) pending() (map[string]bool, error) {
	entries, err := fs.ReadDir(d.root.FS(), temporary)
	if err != nil {
		return nil, fmt.Errorf("look for unfinished files: %w", err)
	}
	keys := map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), mark) {
			continue
		}
		key, err := d.root.ReadFile(path.Join(temporary, e.Name()))
		if err != nil && !absent(err) {
			return nil, fmt.Errorf("read a note: %w", err)
		}
		keys[string(key)] = true
	}
	return keys, nil
}

// clock returns the time of the directory, which may be on another machine.
func (d *Dir) clock() (time.Time, error) {
	name, err := d.begin()
	if err != nil {
		return time.Time{}, err
	}
	defer d.done(name)
	defer d.root.Remove(name)
	if err := d.root.WriteFile(name, []byte{0}, 0o600); err != nil {
		return time.Time{}, fmt.Errorf("read the clock of the directory of files: %w", err)
	}
	info, err := d.root.Stat(name)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the clock of the directory of files: %w", err)
	}
	return info.ModTime(), nil
}
