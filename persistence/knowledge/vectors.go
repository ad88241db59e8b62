package knowledge

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"agentsvc/schemas/id"
)

// Limits of the scan of vectors.
const (
	// MaxScanned is how many chunks a search compares by their vectors: those of the newest documents.
	MaxScanned = 100_000
	// maxLoaded is how many chunks one statement reads, or as many as have maxLoadedBytes of vectors.
	maxLoaded      = 2000
	maxLoadedBytes = 16 << 20
	// cacheBytes bounds the vectors that a node keeps in memory.
	cacheBytes = 128 << 20
	// baseShare is the part of them, 1 of baseShare, that a search fills with the vectors of one base.
	baseShare = 2
	// loads is how many searches of a node read vectors from the database at once, one of a tenant.
	loads = 2
	// loadTime bounds how long a search reads vectors, and waits for it. Those of older documents are left
	// out then: to find by some vectors and by words is more than to find nothing.
	loadTime = 2 * time.Second
	// textsTime is what a search keeps of its time to read what it found.
	textsTime = time.Second
)

// packVector returns a vector as kb_chunks.vector holds it.
func packVector(v []float32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, f := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(f))
	}
	return out
}

// unpackVector is the inverse of packVector.
func unpackVector(packed []byte) []float32 {
	out := make([]float32, len(packed)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(packed[4*i:]))
	}
	return out
}

// matrix holds the vectors of a part of a generation.
type matrix struct {
	width     int
	positions []int32
	values    []float32 // width for each position
}

func (m *matrix) add(position int, packed []byte) {
	if m.width == 0 {
		m.width = len(packed) / 4
		m.values = slices.Grow(m.values, cap(m.positions)*m.width)
	}
	if m.width == 0 || len(packed) != 4*m.width {
		return
	}
	m.positions = append(m.positions, int32(position))
	for i := 0; i < len(packed); i += 4 {
		m.values = append(m.values, math.Float32frombits(binary.LittleEndian.Uint32(packed[i:])))
	}
}

// visible is a document that a viewer may see, in the generation shown, or a part of it.
type visible struct {
	ID     id.DocumentID
	Shown  int
	Chunks int
	First  int // position
}

// bytes is what a matrix takes in the cache.
func (m *matrix) bytes() int64 {
	const entry = 256
	return entry + int64(4*len(m.positions)+4*cap(m.values))
}

// loading bounds the reading of vectors of one search.
func (x *Index) loading(ctx context.Context) (context.Context, context.CancelFunc) {
	until := time.Now().Add(x.loadTime)
	if end, ok := ctx.Deadline(); ok && end.Add(-textsTime).Before(until) {
		until = end.Add(-textsTime)
	}
	return context.WithDeadline(ctx, until)
}

// near returns the chunks whose vectors have the smallest angle to v, the nearest first: at most most,
// and none at a right angle or more. Which documents count is read from the database. Vectors that are not
// in memory are read until patient is done, the newest first, and are kept while the base has less than its part of the
// memory: a base that needs more would drive out those of others with each search. A large document is read in parts.
func (x *Index) near(ctx, patient context.Context, tx pgx.Tx, q *Query, model string, v []float32, most int) ([]candidate, error) {
	rows, err := tx.Query(ctx, q.sql().documents, q.Tenant, q.Base, q.Viewer, model, MaxScanned)
	if err != nil {
		return nil, err
	}
	documents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[visible])
	if err != nil {
		return nil, err
	}
	best := nearest{most: most}
	once := max(1, min(x.loaded, maxLoadedBytes/(4*max(1, len(v)))))
	var missing []visible
	scanned, held := 0, int64(0)
	for _, d := range documents {
		if scanned += d.Chunks; scanned > MaxScanned {
			break
		}
		for first := 0; first < d.Chunks; first += once {
			part := visible{d.ID, d.Shown, min(d.Chunks-first, once), first}
			if m, ok := x.vectors.get(partAt{q.Tenant, part}); ok {
				best.scan(part, m, v)
				held += m.bytes()
			} else {
				missing = append(missing, part)
			}
		}
	}
	for len(missing) > 0 {
		n, chunks := 0, 0
		for n < len(missing) && chunks+missing[n].Chunks <= once {
			chunks += missing[n].Chunks
			n++
		}
		if ok, err := x.load(ctx, patient, tx, q.Tenant, missing[:n], &best, v, &held); err != nil {
			return nil, err
		} else if !ok {
			break
		}
		missing = missing[n:]
	}
	return best.sorted(), nil
}

// load reads the vectors of parts of documents, no two of one document, scans them, and keeps them while held, what the cache has of the base, allows it. It
// reports false if there is no time for it.
func (x *Index) load(ctx, patient context.Context, tx pgx.Tx, t id.TenantID, list []visible, best *nearest, v []float32, held *int64) (bool, error) {
	if patient.Err() != nil {
		return false, nil
	}
	if x.loads.Take(patient, t) != nil {
		return false, nil
	}
	defer x.loads.Give(t)
	ids, generations, firsts, chunks, matrices := make([]id.DocumentID, len(list)), make([]int, len(list)), make([]int, len(list)), make([]int, len(list)), make(map[id.DocumentID]*matrix, len(list))
	for i, d := range list {
		ids[i], generations[i], firsts[i], chunks[i], matrices[d.ID] = d.ID, d.Shown, d.First, d.Chunks, &matrix{positions: make([]int32, 0, d.Chunks)}
	}
	rows, err := tx.Query(ctx, vectorsSQL, t, ids, generations, firsts, chunks)
	if err != nil {
		return false, err
	}
	var d id.DocumentID
	var position int
	var packed pgtype.DriverBytes
	if _, err := pgx.ForEachRow(rows, []any{&d, &position, &packed}, func() error {
		matrices[d].add(position, packed)
		return nil
	}); err != nil {
		return false, err
	}
	for _, d := range list {
		m := matrices[d.ID]
		best.scan(d, m, v)
		if *held += m.bytes(); *held <= x.vectors.limit/baseShare {
			x.vectors.put(partAt{t, d}, m)
		}
	}
	return true, nil
}

// nearest keeps the best chunks: a heap with the worst one first.
type nearest struct {
	most int
	heap []candidate
}

// before orders candidates by their scores, and equal ones in an order that stays.
func before(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.score, a.score), slices.Compare(a.document.UUID[:], b.document.UUID[:]), cmp.Compare(a.position, b.position))
}

func (n *nearest) scan(d visible, m *matrix, v []float32) {
	if m.width != len(v) {
		return
	}
	for i, position := range m.positions {
		score := float64(dot(m.values[i*m.width:(i+1)*m.width], v))
		if score > 0 && (len(n.heap) < n.most || score >= n.heap[0].score) {
			n.offer(candidate{document: d.ID, generation: d.Shown, position: int(position), score: score})
		}
	}
}

func (n *nearest) offer(c candidate) {
	if len(n.heap) < n.most {
		n.heap = append(n.heap, c)
		for i := len(n.heap) - 1; i > 0; {
			up := (i - 1) / 2
			if before(n.heap[i], n.heap[up]) <= 0 {
				break
			}
			n.heap[i], n.heap[up] = n.heap[up], n.heap[i]
			i = up
		}
		return
	}
	if before(c, n.heap[0]) > 0 {
		return
	}
	n.heap[0] = c
	for i := 0; ; {
		worst := i
		for _, down := range []int{2*i + 1, 2*i + 2} {
			if down < len(n.heap) && before(n.heap[down], n.heap[worst]) > 0 {
				worst = down
			}
		}
		if worst == i {
			return
		}
		n.heap[i], n.heap[worst] = n.heap[worst], n.heap[i]
		i = worst
	}
}

func (n *nearest) sorted() []candidate {
	slices.SortFunc(n.heap, before)
	return n.heap
}

// dot returns the product of two vectors of one length. Eight sums at once keep the processor busy.
func dot(a, c []float32) float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	n := len(a) &^ 7
	c = c[:len(a)]
	for i := 0; i < n; i += 8 {
		x, y := a[i:i+8:i+8], c[i:i+8:i+8]
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
		s4 += x[4] * y[4]
		s5 += x[5] * y[5]
		s6 += x[6] * y[6]
		s7 += x[7] * y[7]
	}
	for i := n; i < len(a); i++ {
		s0 += a[i] * c[i]
	}
	return (s0 + s1) + (s2 + s3) + (s4 + s5) + (s6 + s7)
}

// fusion is the constant of the fusion by reciprocal rank.
const fusion = 60

// fuse joins a ranking by words with rankings by vectors, which have no chunk in common: they are of
// different models. A score is the mean of two parts, each (60+1)/(60+place), or 0 for a chunk that is
// not in the ranking.
func fuse(words []candidate, vectors [][]candidate, most int) []candidate {
	type place struct {
		document id.DocumentID
		position int
	}
	at := map[place]int{}
	var out []candidate
	for n, ranking := range append([][]candidate{words}, vectors...) {
		for i, c := range ranking {
			k, ok := at[place{c.document, c.position}]
			if !ok {
				k = len(out)
				at[place{c.document, c.position}] = k
				c.score = 0
				out = append(out, c)
			}
			if n == 0 {
				out[k].words = i + 1
			} else {
				out[k].near = i + 1
			}
			out[k].score += (fusion + 1) / float64(fusion+1+i) / 2
		}
	}
	slices.SortFunc(out, before)
	return out[:min(len(out), most)]
}
