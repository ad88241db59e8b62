package edge

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// IdemKey is the key under which a response to an Idempotency-Key is kept (open-parts.md).
type IdemKey struct {
	Tenant    id.TenantID
	Principal string
	Method    string
	Path      string // the full path, as sent
	Key       string
}

// Idempotency is what a handler's commit stores beside its change, so that a repeat finds
// both or neither. Body is the handler's result as Encode writes it. For uploads Fingerprint
// is set once the last file is read.
type Idempotency struct {
	IdemKey
	Fingerprint [sha256.Size]byte // as it is stored: see describe
	Status      int               // status of the response, if the handler succeeds

	keyed bool              // Config.KeyedFingerprints
	other [sha256.Size]byte // the other form
}

// describe sets the fingerprint of a request. The hash of a body tells who guesses the body that it is right: a password that was
// typed is in some. So what is stored is keyed with the Idempotency-Key, which no row holds.
func (i *Idempotency) describe(hash [sha256.Size]byte) {
	h := hmac.New(sha256.New, []byte(i.Key))
	h.Write([]byte("fingerprint 1"))
	h.Write(hash[:])
	if i.Fingerprint = hash; i.keyed {
		h.Sum(i.Fingerprint[:0])
		i.other = hash
	} else {
		h.Sum(i.other[:0])
	}
}

// Matches reports whether a stored fingerprint is that of the request. Rows of other builds, and of a node
// that was alone before it joined others, have the other form.
func (i *Idempotency) Matches(kept [sha256.Size]byte) bool {
	return kept == i.Fingerprint || kept == i.other
}

// Stored is a kept response.
type Stored struct {
	Fingerprint [sha256.Size]byte
	Status      int
	Body        []byte
}

// Replays finds kept responses.
type Replays interface {
	// Find returns nil when there is none. It sees everything that was kept before the call,
	// on any node.
	Find(ctx context.Context, key IdemKey) (*Stored, error)
}

// ErrReplay is returned by a handler whose commit found that another node had already used
// the same key. The edge then looks up the kept response.
var ErrReplay = errors.New("another request with this idempotency key was first")

const (
	flightWait  = 5 * time.Second
	replayTries = 3
)

// flights admits one request at a time for each key on this node.
type flights struct {
	mu sync.Mutex // guards m
	m  map[IdemKey]*flight
}

// flight is a request in progress. After done is closed, kept holds its response, if it is
// one to keep.
type flight struct {
	done chan struct{}
	kept *Stored
}

// join returns the flight in progress, or a new one that the caller must end.
func (fs *flights) join(k IdemKey) (f *flight, mine bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f = fs.m[k]; f != nil {
		return f, false
	}
	if fs.m == nil {
		fs.m = map[IdemKey]*flight{}
	}
	f = &flight{done: make(chan struct{})}
	fs.m[k] = f
	return f, true
}

func (fs *flights) end(k IdemKey, f *flight) {
	fs.mu.Lock()
	delete(fs.m, k)
	fs.mu.Unlock()
	close(f.done)
}

type call func() (status int, body []byte, err error)

func inProgress() *problem.Error {
	return &problem.Error{Code: problem.CodeIdempotencyInProgress, RetryAfter: time.Second,
		Detail: "The first request with this Idempotency-Key has not ended yet."}
}

// once runs do, or replays the response kept under the request's Idempotency-Key.
func (s *Server) once(rq *request, do call) error {
	return s.single(rq, rq.fingerprint, false, do)
}

// fingerprint returns the hash of the body and the query.
func (rq *request) fingerprint() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	h.Write(rq.body)
	h.Write([]byte{'?'})
	h.Write(rq.query)
	h.Sum(sum[:0])
	return sum, nil
}

// onceUpload is once for a body whose hash is known only after its handler has read it.
func (s *Server) onceUpload(rq *request, up *Upload, do call) error {
	return s.single(rq, up.drain, true, do)
}

func (s *Server) single(rq *request, fingerprint func() ([sha256.Size]byte, error), late bool, do call) error {
	if !rq.ep.Idempotent || !rq.head.hasIdem {
		return s.plain(rq, do)
	}
	key := string(rq.head.idempotency)
	if bad := checkKey("Idempotency-Key", key); bad != nil {
		return bad
	}
	return s.keyed(rq, IdemKey{Tenant: rq.caller.Tenant, Principal: rq.caller.Principal, Method: rq.method, Path: string(rq.path), Key: key}, fingerprint, late, do)
}

// plain runs do for a request without an idempotency key.
func (s *Server) plain(rq *request, do call) error {
	status, body, err := do()
	if err != nil {
		return err
	}
	return rq.json(status, body)
}

// checkKey validates the value of a header field that serves as an idempotency key.
func checkKey(header, key string) *problem.Error {
	if n := utf8.RuneCountInString(key); n < 1 || n > 255 || !clean(key) {
		return problem.Invalid(header, "expected 1 to 255 characters")
	}
	return nil
}

// keyed runs do, or replays the response kept under k.
func (s *Server) keyed(rq *request, k IdemKey, fingerprint func() ([sha256.Size]byte, error), late bool, do call) error {
	if s.cfg.Replays == nil {
		return s.plain(rq, do)
	}
	idem := &Idempotency{IdemKey: k, Status: rq.ep.Status, keyed: s.cfg.KeyedFingerprints}
	known := false
	describe := func() error {
		if known {
			return nil
		}
		hash, err := fingerprint()
		if err == nil {
			idem.describe(hash)
			known = true
		}
		return err
	}
	if !late {
		if err := describe(); err != nil {
			return err
		}
	}
	rq.caller.Idem = idem

	repeat := func(kept *Stored) error {
		if err := describe(); err != nil {
			return err
		}
		if !idem.Matches(kept.Fingerprint) {
			return problem.New(problem.CodeIdempotencyConflict, "This Idempotency-Key was used with another request.")
		}
		if rq.again != nil {
			if err := rq.again(); err != nil {
				return err
			}
		}
		rq.fc.Response.Header.Set("Idempotency-Replayed", "true")
		return rq.json(kept.Status, kept.Body)
	}

	var patience <-chan time.Time
	f, mine := s.flights.join(k)
	for !mine {
		if patience == nil {
			timer := time.NewTimer(s.flightWait)
			defer timer.Stop()
			patience = timer.C
		}
		select {
		case <-f.done:
		case <-patience:
			return inProgress()
		}
		if err := rq.authenticateAgain(); err != nil {
			return err
		}
		if f.kept != nil {
			return repeat(f.kept)
		}
		f, mine = s.flights.join(k)
	}
	defer s.flights.end(k, f)

	// answered replays the kept response, if there is one.
	answered := func() (bool, error) {
		kept, err := s.cfg.Replays.Find(rq.ctx, k)
		if err != nil || kept == nil {
			return false, err
		}
		f.kept = kept
		return true, repeat(kept)
	}
	for range replayTries {
		if found, err := answered(); found || err != nil {
			return err
		}
		status, body, err := do()
		if errors.Is(err, ErrReplay) {
			continue
		}
		if err != nil {
			// Another node may have committed the first request since the look-up above, and
			// the handler may be refusing because of that commit. The commit includes its
			// response, so look once more.
			if p, _ := s.problemOf(err); p.Status() < http.StatusInternalServerError {
				if found, failed := answered(); found || failed != nil {
					return failed
				}
			}
			return err
		}
		if status >= http.StatusOK && status < http.StatusMultipleChoices {
			if describe() == nil {
				f.kept = &Stored{Fingerprint: idem.Fingerprint, Status: status, Body: body}
			}
		}
		return rq.json(status, body)
	}
	return inProgress()
}
