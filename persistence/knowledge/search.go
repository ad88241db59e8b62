package knowledge

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lexis"
	"agentsvc/schemas/turn"
)

//go:embed queries/*.sql
var files embed.FS

const (
	// Timeout bounds a search, and a read of a document.
	Timeout = 5 * time.Second
	// writeTimeout bounds a write of chunks.
	writeTimeout = 30 * time.Second
	// MaxCandidates is how many chunks a search ranks.
	MaxCandidates = 20_000
	// wideCandidates is about how many chunks it ranks where the viewer may see more than MaxCandidates.
	wideCandidates = 8000
	// phraseCandidates is how many chunks with a phrase are ranked there. Each chunk with all its words has to be read, and
	// those with the phrase differ by little.
	phraseCandidates = 2000
	// leastOthers is of how many chunks one may conclude how frequent a word is, and guessed the part of
	// all chunks in which it occurs otherwise.
	leastOthers = 30
	guessed     = 0.1
	// leastBeginning is how long an unfinished word is at least, in characters, to be looked for there.
	leastBeginning = 4
)

// Places of searches on a node. Each search holds one of the connections that all routes of the API
// share, for up to Timeout: without a bound the expensive searches of one tenant would take them all.
const (
	searchesEach    = 6   // of a tenant at a time
	searchesAll     = 10  // of all tenants at a time; the API has 16 connections
	searchesWaiting = 200 // of a tenant; further ones are refused at once

	// scansEach is how many searches of a tenant compare vectors at a time: each holds a connection, for long if its
	// vectors are not in memory. One that waits longer than scanPatience goes by words only.
	scansEach    = 4
	scanPatience = time.Second
	unbounded    = 1 << 20 // of all tenants
)

// The parameters of BM25.
const (
	saturation = 1.2  // k1
	lengthPart = 0.75 // b
	prefixPart = 0.4  // what an unfinished word counts
)

// Index searches chunks. It is safe for concurrent use.
type Index struct {
	pool      *pgxpool.Pool
	embedder  Embedder // nil: searches are lexical
	vectors   *cache
	loads     *turn.Places
	loaded    int // maxLoaded
	loadTime  time.Duration
	paused    paused
	scans     *turn.Places
	patience  time.Duration // scanPatience
	embedTime time.Duration // EmbedTimeout
	pause     time.Duration // embedPause
	billTime  time.Duration // billTimeout
	places    *turn.Places
	seen      seen
	most      int   // MaxCandidates
	wide      int   // wideCandidates
	phrased   int   // phraseCandidates
	few       int64 // fewChunks; negative: never few
}

// NewIndex returns an Index over a pool of the role svc_api. e makes the vectors of queries; nil:
// all searches are lexical.
func NewIndex(pool *pgxpool.Pool, e Embedder) *Index {
	return &Index{pool: pool, embedder: e, vectors: newCache(cacheBytes), loads: turn.New(loads, 1), loaded: maxLoaded, loadTime: loadTime, paused: paused{until: map[pausedAt]time.Time{}},
		scans: turn.New(unbounded, scansEach), patience: scanPatience, embedTime: EmbedTimeout, pause: embedPause, billTime: billTimeout, places: turn.New(searchesAll, searchesEach), most: MaxCandidates, wide: wideCandidates, phrased: phraseCandidates, few: fewChunks}
}

// Query is a search in one base.
type Query struct {
	Tenant id.TenantID
	Base   id.KnowledgeBaseID
	Text   string
	TopK   int
	Viewer []string // principals (schemas/knowledge.Viewer)
	// Run and Agent are billed for the vector of the query; nil: it is billed without them.
	Run     *id.RunID
	Agent   *id.AgentID
	Explain bool // hits say why they were found
	// MaxBytes bounds the texts that are read, except one chunk; 0: nothing does.
	MaxBytes int
}

// ranked is how many chunks of each ranking take part in a fusion.
const ranked = 100

// enter waits for a place. It reports false if there is none before ctx ends, or too many searches of the tenant wait already.
func (x *Index) enter(ctx context.Context, t id.TenantID) bool {
	ok, err := x.places.TakeIf(ctx, t, func(mine, _ int) bool { return mine < searchesWaiting })
	return ok && err == nil
}

// scan waits for a place among the searches of the tenant that compare vectors. It reports false if there is none in time; else the caller
// gives it back.
func (x *Index) scan(ctx context.Context, t id.TenantID) bool {
	ctx, cancel := context.WithTimeout(ctx, x.patience)
	defer cancel()
	return x.scans.Take(ctx, t) == nil
}

// errNoPlace: too many searches of the tenant are under way, or of all.
var errNoPlace = fmt.Errorf("%w: too many searches are under way", store.ErrUnavailable)

// Search returns the chunks that fit a query best, the best first. Neighbouring chunks of a document
// are one hit, at the place of the better one.
//
// The score of a lexical search is above 0 and at most 1: the part of the score that a text would
// have that repeats every word of the query without end. That of a hybrid search tells places: 1 is
// first by words and by vectors, 0.5 first in one of them and absent in the other.
func (x *Index) Search(ctx context.Context, q Query) ([]knowledge.Hit, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	parsed := lexis.Parse(q.Text)
	if len(parsed.Words) == 0 || q.TopK <= 0 {
		return []knowledge.Hit{}, nil
	}
	kind := "lexical"
	ask := x.embedder != nil && len(parsed.Phrases) == 0 // vectors know nothing of quotes
	hits, names, err := x.find(ctx, &q, &parsed, nil, ask)
	if len(names) > 0 {
		vectors, used, fallback := x.embed(ctx, &q, names)
		switch {
		case len(vectors) > 0 && !x.scan(ctx, q.Tenant):
			kind, vectors = "fallback", nil
		case len(vectors) > 0:
			kind = "hybrid"
			defer x.scans.Give(q.Tenant)
		case fallback:
			kind = "fallback"
		}
		billed := make(chan error, 1)
		go func() { billed <- x.bill(ctx, &q, used) }()
		hits, _, err = x.find(ctx, &q, &parsed, vectors, false)
		err = errors.Join(err, <-billed)
	}
	if errors.Is(err, errNoPlace) {
		searches.WithLabelValues("refused").Inc()
	}
	if err != nil {
		return nil, fmt.Errorf("search knowledge base %s: %w", q.Base, unavailable(err))
	}
	searches.WithLabelValues(kind).Inc()
	return hits, nil
}

// find ranks by words and by vectors, if there are any. With ask it first looks for models whose vectors the query
// may be compared with: if there are any, it returns their names, and no hits.
func (x *Index) find(ctx context.Context, q *Query, parsed *lexis.Query, vectors map[string][]float32, ask bool) (hits []knowledge.Hit, names []string, err error) {
	if !x.enter(ctx, q.Tenant) {
		return nil, nil, errNoPlace
	}
	defer x.places.Give(q.Tenant)
	hits = []knowledge.Hit{}
	most := 3 * q.TopK // neighbours may join
	if len(vectors) > 0 {
		most = max(most, ranked)
	}
	err = x.read(ctx, q, func(tx pgx.Tx) error {
		var number int64
		var embeds bool
		if err := tx.QueryRow(ctx, baseSQL, q.Tenant, q.Base).Scan(&number, &embeds); errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		if ask && embeds {
			if names, err = models(ctx, tx, q); err != nil || len(names) > 0 {
				return err
			}
		}
		chunks, every, err := x.seen.count(ctx, tx, q)
		if err != nil {
			return err
		}
		if chunks > int64(x.most) {
			if _, err := tx.Exec(ctx, loops); err != nil {
				return err
			}
		}
		few := x.isFew(chunks, every)
		found, err := x.rank(ctx, tx, q, number, chunks, few, parsed, most)
		if err == nil && len(found) == 0 && len(parsed.Phrases) == 0 {
			if parsed.Words, err = meant(ctx, tx, q, number, few, parsed.Words); err == nil && len(parsed.Words) > 0 {
				parsed.Last = ""
				found, err = x.rank(ctx, tx, q, number, chunks, few, parsed, most)
			}
		}
		if err == nil {
			err = restrict(ctx, tx)
		}
		if err != nil {
			return err
		}
		if len(vectors) > 0 {
			var rankings [][]candidate
			patient, cancel := x.loading(ctx)
			defer cancel()
			for model, v := range vectors {
				ranking, err := x.near(ctx, patient, tx, q, model, v, most)
				if err != nil {
					return err
				}
				rankings = append(rankings, ranking)
			}
			found = fuse(found, rankings, 3*q.TopK)
		} else {
			for i := range found {
				found[i].words = i + 1
			}
		}
		if len(found) > 0 {
			hits, err = texts(ctx, tx, q, found)
		}
		return err
	})
	return hits, names, err
}

// unavailable marks the errors that mean that the database cannot serve now: all but those of a
// statement itself.
func unavailable(err error) error {
	refused := new(pgconn.PgError)
	if errors.As(err, &refused) && !slices.Contains([]string{"08", "53", "57"}, refused.Code[:2]) {
		return err
	}
	return errors.Join(store.ErrUnavailable, err)
}

// isFew reports whether the chunks that the viewer may see, of every in the base, are compared one by one.
func (x *Index) isFew(chunks, every int64) bool {
	return x.few >= 0 && chunks <= int64(x.most) && (chunks <= x.few || every/fewOf > chunks)
}

// read runs the statements of one search in a transaction that sees one state of the rows. It begins
// as svc_system: under row-level security Postgres does not use the index of words, because its
// operator is not leakproof. The queries name tenant and viewer. From restrict on, the transaction
// works as svc_api. With less memory the bitmap of a frequent word in a large base names pages instead of
// chunks, and each chunk of these is read and compared; a compilation takes longer than the search.
//
// Postgres takes the documents of one base among many, and the chunks with words that it does not know, for a few rows, and would compare
// each with each or read the index of words once for each document. So it joins them by hashes until restrict, and reads no table
// as a whole.
func (x *Index) read(ctx context.Context, q *Query, do func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, x.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT set_config('svc.tenant', $1, true), set_config('role', 'svc_system', true), set_config('work_mem', '16MB', true), set_config('jit', 'off', true), set_config('enable_nestloop', 'off', true), set_config('enable_seqscan', 'off', true)", q.Tenant.String()); err != nil {
			return err
		}
		if q.many() {
			if _, err := tx.Exec(ctx, lookedUp); err != nil {
				return err
			}
		}
		return do(tx)
	})
}

// loops lets Postgres join rows in a loop again. Of a large base it reads some of the chunks only, as many as are ranked: a join by
// hashes may begin with all that match. No plan for all arguments is made with it: another search would find that on its connection.
const loops = "SELECT set_config('enable_nestloop', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true)"

// restrict makes the rest of a transaction see the rows of its tenant only. Its queries look up rows by their keys.
func restrict(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT set_config('role', 'svc_api', true), set_config('enable_nestloop', 'on', true), set_config('enable_seqscan', 'on', true)")
	return err
}

// candidate is a chunk that matches.
type candidate struct {
	document   id.DocumentID
	generation int
	position   int
	length     int
	counts     []int // of each word of the query
	prefix     bool  // it has not the unfinished word, but one that begins so
	parts      parts // that brought it, in a large base
	score      float64
	words      int // its place in the ranking by words, from 1; 0: none
	near       int // its place in the ranking by vectors
}

// chunkAt names a chunk of the generations that are shown.
type chunkAt struct {
	document id.DocumentID
	position int
}

func (c *candidate) at() chunkAt { return chunkAt{c.document, c.position} }

// rank returns the best candidates by words, at most most. chunks is how many the viewer may see, and few says
// that these are compared one by one.
//
// Where these are more than MaxCandidates, a frequent word alone may occur in more than can be ranked. Then each
// word brings its own share, and so does the conjunction of all words: chunks with a rare word are candidates
// all the same, and so are those with all the words. How rare a frequent word is follows from the candidates that
// others brought.
func (x *Index) rank(ctx context.Context, tx pgx.Tx, q *Query, number, chunks int64, few bool, p *lexis.Query, most int) ([]candidate, error) {
	var rows pgx.Rows
	var err error
	var of []int // the parts of the query, if the index is asked
	share, wide := x.most, chunks > int64(x.most)
	if few {
		phrases, last := conditions(number, p)
		rows, err = tx.Query(ctx, q.sql().few, q.Tenant, q.Base, q.Viewer, phrases, last, share)
	} else {
		var match []string
		if wide {
			match, of, share = x.shares(number, p)
		} else {
			match, of = whole(number, p)
		}
		rows, err = tx.Query(ctx, q.sql().candidates, q.Tenant, q.Base, q.Viewer, match, share, of)
	}
	if err != nil {
		return nil, err
	}
	hashes := make([][]uint32, len(p.Words))
	for i, alternatives := range p.Words {
		for _, a := range alternatives {
			hashes[i] = append(hashes[i], lexis.Hash(a))
		}
	}
	var (
		list  []candidate
		c     candidate
		terms pgtype.DriverBytes
		total int
		part  int   // of the query, from 1
		room  []int // for counts
	)
	const roomFor = 64               // candidates at a time
	seen := make([]int, len(hashes)) // in how many candidates a word occurs
	brought := make([]int, len(hashes)+2)
	known := map[chunkAt]int{}
	_, err = pgx.ForEachRow(rows, []any{&c.document, &c.generation, &c.position, &c.length, &terms, &c.prefix, &part}, func() error {
		if !few {
			brought[part-1]++
			c.prefix, c.parts = part == unfinished(p), parts{}.with(part-1)
		}
		if i, ok := known[c.at()]; ok { // another part brought it
			list[i].parts, list[i].prefix = list[i].parts.with(part-1), list[i].prefix || c.prefix
			return nil
		}
		if len(room) < len(hashes) {
			room = make([]int, roomFor*len(hashes))
		}
		c.counts = room[:len(hashes):len(hashes)]
		words := 0
		for i, alternatives := range hashes {
			c.counts[i] = 0
			for _, h := range alternatives {
				c.counts[i] += occurs(terms, h)
			}
			if c.counts[i] > 0 {
				seen[i]++
				words++
			}
		}
		c.prefix = c.prefix && c.counts[p.LastAt] == 0
		if words == 0 && !c.prefix {
			return nil
		}
		if len(of) > 1 {
			known[c.at()] = len(list)
		}
		total += c.length
		list, room = append(list, c), room[len(hashes):]
		return nil
	})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	n, mean := max(float64(chunks), float64(len(list))), max(1, float64(total)/float64(len(list)))
	if wide {
		estimate(seen, list, brought, share, n)
	}
	rare := func(in int) float64 { return math.Log(1 + (n-float64(in)+0.5)/(float64(in)+0.5)) }
	starts, highest := 0, 0.0 // in how many the unfinished word occurs or begins one
	if p.Last != "" {
		starts = seen[p.LastAt]
	}
	for i := range list {
		if list[i].prefix {
			starts++
		}
	}
	starts = min(starts, int(n))
	for i := range hashes {
		highest += rare(seen[i]) * (saturation + 1)
	}
	for i := range list {
		c := &list[i]
		for j, count := range c.counts {
			if count > 0 {
				tf := float64(count)
				c.score += rare(seen[j]) * tf * (saturation + 1) / (tf + saturation*(1-lengthPart+lengthPart*float64(c.length)/mean))
			}
		}
		if c.prefix {
			c.score += prefixPart * rare(starts)
		}
		c.score = min(1, c.score/highest)
	}
	return best(list, most), nil
}

// best returns the first candidates of a list, in order, at most most: few of many, so that the others are not sorted.
func best(list []candidate, most int) []candidate {
	first := make([]candidate, 0, min(len(list), most))
	for i := range list {
		if len(first) == most && before(first[most-1], list[i]) < 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(first, list[i], before)
		if len(first) == most {
			first = first[:most-1]
		}
		first = slices.Insert(first, at, list[i])
	}
	return first
}

// shares returns the parts of a query that bring candidates of their own, and which they are, from 1: each word, all words,
// and the unfinished word; and how many each brings at most. What a part brings has all phrases of the query, so that their own
// words are one part, that of the first one.
func (x *Index) shares(number int64, p *lexis.Query) (match []string, of []int, most int) {
	list := words(number, p)
	phrases := phrases(list, p)
	within := slices.Concat(p.Phrases...)
	add := func(part int, s string) {
		if phrases != "" {
			s += "&" + phrases
		}
		match, of = append(match, s), append(of, part)
	}
	for i, w := range list {
		if !slices.Contains(within, i) {
			add(i+1, w)
		}
	}
	if len(list) > 1 && len(of) > 0 {
		add(len(list)+1, strings.Join(list, "&"))
	}
	if phrases != "" {
		match, of = append(match, phrases), append(of, p.Phrases[0][0]+1)
	}
	if len([]rune(p.Last)) >= leastBeginning {
		add(unfinished(p), beginning(number, p, list))
	}
	most = max(1, x.wide/len(of))
	if phrases != "" {
		most = min(most, x.phrased)
	}
	return match, of, most
}

// estimate corrects in how many of n chunks a word occurs, for words that brought no more than their share: it
// follows from how often they occur in what the other words brought, or is a guess if that is too little.
func estimate(seen []int, list []candidate, brought []int, share int, n float64) {
	for i := range seen {
		if brought[i] < share {
			continue // it brought all its chunks
		}
		without := parts{}.with(i).with(len(seen))
		others, with := 0, 0
		for _, c := range list {
			if c.parts.beside(without) {
				others++
				if c.counts[i] > 0 {
					with++
				}
			}
		}
		part := guessed
		if others >= leastOthers {
			part = float64(with) / float64(others)
		}
		seen[i] = max(seen[i], int(n*part))
	}
}

// parts are parts of a query, by their places: 64 words, all of them, and the unfinished one.
type parts [2]uint64

func (p parts) with(i int) parts {
	p[i/64] |= 1 << (i % 64)
	return p
}

// beside reports whether there is another part than those of o.
func (p parts) beside(o parts) bool { return p[0]&^o[0] != 0 || p[1]&^o[1] != 0 }

// words returns the tsquery of each word of a query.
func words(number int64, p *lexis.Query) []string {
	words := make([]string, len(p.Words))
	for i, alternatives := range p.Words {
		list := make([]string, len(alternatives))
		for j, a := range alternatives {
			list[j] = lexeme(number, a)
		}
		words[i] = "(" + strings.Join(list, "|") + ")"
	}
	return words
}

// whole returns the parts of a query of which all chunks are ranked: those with a word of it, or with its phrases,
// and those with the beginning of one. That is no condition beside the words: Postgres would read the lexemes of each
// chunk for it.
func whole(number int64, p *lexis.Query) (match []string, of []int) {
	list := words(number, p)
	phrases := phrases(list, p)
	any := phrases
	if any == "" {
		any = strings.Join(list, "|")
	}
	match, of = []string{any}, []int{1}
	if p.Last != "" {
		last := beginning(number, p, list)
		if phrases != "" {
			last += "&" + phrases
		}
		match, of = append(match, last), append(of, unfinished(p))
	}
	return match, of
}

// unfinished is the place of the unfinished word among the parts of a query, behind its words and all of them.
func unfinished(p *lexis.Query) int { return len(p.Words) + 2 }

// beginning returns the tsquery of what begins with the unfinished word of a query, and has not the word itself.
func beginning(number int64, p *lexis.Query, words []string) string {
	return lexeme(number, p.Last) + ":*&!" + words[p.LastAt]
}

// conditions returns the tsquery of the phrases of a query, and of its unfinished last word (nil: none).
func conditions(number int64, p *lexis.Query) (all, last *string) {
	if s := phrases(words(number, p), p); s != "" {
		all = &s
	}
	if p.Last != "" {
		s := lexeme(number, p.Last) + ":*"
		last = &s
	}
	return all, last
}

// phrases returns the tsquery of a text with all phrases of a query; empty if it has none.
func phrases(words []string, p *lexis.Query) string {
	all := make([]string, len(p.Phrases))
	for i, phrase := range p.Phrases {
		parts := make([]string, len(phrase))
		for j, at := range phrase {
			parts[j] = words[at]
		}
		all[i] = "(" + strings.Join(parts, "<->") + ")"
	}
	return strings.Join(all, "&")
}

// texts returns the hits of the best candidates.
func texts(ctx context.Context, tx pgx.Tx, q *Query, found []candidate) ([]knowledge.Hit, error) {
	documents, generations, positions, ranks := make([]id.DocumentID, len(found)), make([]int, len(found)), make([]int, len(found)), make([]int, len(found))
	for i, c := range found {
		documents[i], generations[i], positions[i], ranks[i] = c.document, c.generation, c.position, i
	}
	rows, err := tx.Query(ctx, q.sql().texts, q.Tenant, q.Base, q.Viewer, documents, generations, positions, ranks)
	if err != nil {
		return nil, err
	}
	var list []piece
	var at, overlap, read int
	var h knowledge.Hit
	var principal *string
	_, err = pgx.ForEachRow(rows, []any{&at, &h.ChunkID, &h.DocumentID, &h.DocumentName, &h.URI, &h.Text, &overlap, &h.Position, &principal}, func() error {
		if q.MaxBytes > 0 && read > q.MaxBytes {
			return errEnough
		}
		read += len(h.Text)
		if q.Explain {
			h.Why = &knowledge.Why{WordsRank: place(found[at].words), VectorsRank: place(found[at].near), Principal: principal}
		}
		h.Score, h.Cite = found[at].score, knowledge.Cite(h.DocumentID, h.Position)
		list = append(list, piece{h, h.Position, h.Position, overlap})
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return merge(list, q.TopK), nil
}

func place(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

// piece is a hit that covers the chunks from first to last. overlap is how much of its text
// repeats the chunk before.
type piece struct {
	hit                  knowledge.Hit
	first, last, overlap int
}

// merge joins neighbours among the pieces, which are in the order of their scores, and returns at
// most k hits. A piece joins a better one only while that covers at most three chunks.
func merge(list []piece, k int) []knowledge.Hit {
	const most = 3
	var out []piece
	for _, p := range list {
		i := slices.IndexFunc(out, func(o piece) bool {
			return o.hit.DocumentID == p.hit.DocumentID && o.last-o.first+1 < most && (p.first == o.last+1 || p.last == o.first-1)
		})
		switch {
		case i < 0 && len(out) == k:
		case i < 0:
			out = append(out, p)
		case p.first == out[i].last+1:
			out[i].hit.Text += "\n" + behind(p.hit.Text, p.overlap)
			out[i].last = p.last
		default:
			out[i].hit.Text = p.hit.Text + "\n" + behind(out[i].hit.Text, out[i].overlap)
			out[i].first, out[i].overlap = p.first, p.overlap
		}
	}
	hits := make([]knowledge.Hit, len(out))
	for i := range out {
		hits[i] = out[i].hit
	}
	return hits
}

// behind returns a text without the bytes that repeat the chunk before.
func behind(text string, overlap int) string {
	if overlap <= 0 || overlap > len(text) {
		return text
	}
	return strings.TrimLeft(text[overlap:], " \n")
}
