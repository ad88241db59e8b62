package document

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Chunking is how a document is cut.
type Chunking struct {
	MaxTokens     int // in a chunk; 0 means 400
	OverlapTokens int // of the end of a chunk that the next one repeats; at most half of MaxTokens counts
}

// DefaultMaxTokens is the size of a chunk if none is given.
const DefaultMaxTokens = 400

// longestGap limits white space inside a chunk, in bytes.
const longestGap = 64

// longestHeading limits what of a heading is context of other chunks, in runes. The text of a
// heading is in its own chunk, however long it is.
const longestHeading = 200

// Splitter cuts blocks into chunks. Push the blocks in order, then Close.
//
// A heading begins a chunk, and so does a page. A paragraph that fits stays whole where that
// wastes no more than half a chunk; otherwise it is cut between sentences, a long sentence
// between words, a long word between runes. Rows and lines of code are cut as a last resort
// only. A chunk with rows begins with their header row. A chunk that goes on where the one
// before was full repeats the end of it, from the start of a sentence or else of a word;
// headings, rows and code begin without that.
type Splitter struct {
	max, overlap int // parts of tokens
	emit         func(Chunk) error

	text   strings.Builder // of the chunk that is being made
	parts  int             // of text
	repeat int             // bytes at the start of text that repeat earlier text
	page   int
	only   bool   // text holds headings and nothing else
	last   Kind   // of the block that text ends with
	gap    string // white space between text and what follows it

	path   []heading
	header string // header row that text holds, or that is too long to repeat
	count  int
	err    error
}

type heading struct {
	level int
	text  string
}

// NewSplitter returns a splitter that calls emit for each chunk.
func NewSplitter(c Chunking, emit func(Chunk) error) *Splitter {
	if c.MaxTokens <= 0 {
		c.MaxTokens = DefaultMaxTokens
	}
	c.OverlapTokens = max(0, min(c.OverlapTokens, c.MaxTokens/2))
	return &Splitter{max: c.MaxTokens * unit, overlap: c.OverlapTokens * unit, emit: emit}
}

// Push adds a block. An error of emit ends the splitter and is returned from then on.
func (s *Splitter) Push(b Block) error {
	if s.err != nil {
		return s.err
	}
	text := b.Text
	if !b.Continues {
		if b.Kind == Row || b.Kind == Code {
			text = strings.TrimLeft(text, "\r\n")
		} else {
			text = strings.TrimLeftFunc(text, unicode.IsSpace)
		}
	}
	if strings.TrimSpace(text) == "" && (!b.Continues || s.empty()) {
		return nil
	}
	if b.Page != s.page {
		if !b.Continues {
			s.gap = "\n"
		}
		s.flush(b.Kind == Paragraph || b.Kind == List)
		s.page = b.Page
	}
	if b.Kind != Row {
		s.header = ""
	}
	switch {
	case b.Kind == Heading:
		if !b.Continues {
			s.head(b, text)
		}
		s.write(text, s.joint(b), running)
	case b.Kind == Row:
		s.row(b, text)
	case b.Kind == Code:
		s.only = false
		s.write(text, s.joint(b), lines)
	default:
		s.write(text, s.joint(b), running)
		s.only = false
	}
	s.last = b.Kind
	return s.err
}

// Close emits what is left. It returns the number of chunks.
func (s *Splitter) Close() (int, error) {
	s.flush(false)
	return s.count, s.err
}

// head begins a section.
func (s *Splitter) head(b Block, text string) {
	if !s.only {
		s.flush(false)
	}
	level := max(1, b.Level)
	for len(s.path) > 0 && s.path[len(s.path)-1].level >= level {
		s.path = s.path[:len(s.path)-1]
	}
	s.path = append(s.path, heading{level, short(text)})
	s.only = true
}

// short is a heading as context: one line of bounded length.
func short(text string) string {
	if len(text) > longestHeading*utf8.UTFMax {
		text = text[:runeStart(text, longestHeading*utf8.UTFMax)]
	}
	text = strings.Join(strings.Fields(text), " ")
	if utf8.RuneCountInString(text) > longestHeading {
		text = string([]rune(text)[:longestHeading-1]) + "…"
	}
	return text
}

// joint is what stands between the text so far and a block.
func (s *Splitter) joint(b Block) string {
	switch {
	case b.Continues:
		return ""
	case b.Kind == List && s.last == List, b.Kind == Row && s.last == Row, s.last == Heading:
		return "\n"
	}
	return "\n\n"
}

// row adds a row, below its header.
func (s *Splitter) row(b Block, text string) {
	s.only = false
	header := strings.TrimSpace(b.Header)
	repeated := parts(header) + spaceParts // and the line's end
	switch {
	case header == "":
		s.header = ""
		s.write(text, s.joint(b), whole)
		return
	case repeated > s.max/2 || s.max-repeated < unit:
		// The header is too long to be repeated: it stands above its first row only.
		if s.header != header {
			s.write(header, s.joint(Block{Kind: Row}), whole)
			s.header, s.last = header, Row
		}
		s.write(text, s.joint(b), whole)
		return
	}
	begin := func(again bool) {
		s.add("", header+"\n")
		if again {
			s.repeat = s.text.Len()
		}
	}
	text = strings.TrimRightFunc(text, unicode.IsSpace)
	need := parts(text)
	joint := s.joint(b)
	switch {
	case s.header != header: // the first row of a table
		joint = s.joint(Block{Kind: Row})
		total := repeated + need
		if !s.empty() && s.parts+parts(joint)+total > s.max && (total <= s.max || s.parts > s.max/4) {
			s.flush(false)
		}
		if !s.empty() {
			s.add(joint, "")
		}
		begin(false)
		s.header, joint = header, ""
	case s.empty(): // a page began
		begin(true)
		joint = ""
	case !b.Continues && s.parts+parts(joint)+need > s.max:
		s.flush(false)
		begin(true)
		joint = ""
	}
	for {
		if s.parts+parts(joint) <= s.max {
			n := fit(text, s.max-s.parts-parts(joint))
			s.add(joint, text[:n])
			text = text[n:]
		}
		if text == "" || s.err != nil {
			return
		}
		s.flush(false)
		begin(true)
		joint = ""
	}
}

// A manner is how a text is cut.
type manner struct {
	next  func(string) int // the length of the first piece of a text
	flows bool             // a chunk repeats the end of the one before
}

var (
	running = manner{sentences, true}
	lines   = manner{lineBreaks, false}
	whole   = manner{func(text string) int { return len(text) }, false}
)

// write adds a text. It goes into the next chunk if it fits there and this one is at least
// half full; otherwise it is cut as m says, where this chunk is full.
func (s *Splitter) write(text, joint string, m manner) {
	if !s.fresh() { // what is repeated ends with what stands between
		joint = ""
	}
	if need := parts(text); joint != "" && s.parts+parts(joint)+need > s.max && s.fresh() && !s.only && s.parts >= s.max/2 && need <= s.max-s.overlap {
		s.gap = joint
		s.flush(m.flows)
		joint = ""
	}
	for text != "" && s.err == nil {
		n := m.next(text)
		s.piece(text[:n], joint, m)
		text, joint = text[n:], ""
	}
}

// piece adds a piece of a text, and cuts it only if it is longer than a chunk.
func (s *Splitter) piece(piece, joint string, m manner) {
	core := strings.TrimRightFunc(piece, unicode.IsSpace)
	after := piece[len(core):]
	if joint == "" {
		joint = s.gap
	}
	need := parts(core)
	if over := s.parts + parts(joint) + need - s.max; over > 0 && need <= s.max && !s.only {
		if s.fresh() {
			s.gap = joint
			s.flush(m.flows)
			joint = ""
			over = s.parts + need - s.max
		}
		if over > 0 { // with what is repeated
			s.shrink(over)
		}
		if s.empty() {
			joint, core = "", s.trim(core, m)
		}
	}
	for core != "" && s.err == nil {
		n := fit(core, s.max-s.parts-parts(joint))
		if n > 0 {
			s.add(joint, core[:n])
			core = core[n:]
		}
		joint = ""
		if core == "" {
			break
		}
		switch {
		case s.fresh():
			s.flush(m.flows)
		case n == 0:
			s.drop()
		}
		if s.empty() {
			core = s.trim(core, m)
		}
	}
	if !s.empty() {
		s.gap += after
		if len(s.gap) > longestGap {
			s.gap = s.gap[:runeStart(s.gap, longestGap)]
		}
	}
}

// trim removes white space at the start of a chunk; lines keep their indentation.
func (s *Splitter) trim(text string, m manner) string {
	if m.flows {
		return strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	return strings.TrimLeft(text, "\r\n")
}

// add appends a joint and a text that fit.
func (s *Splitter) add(joint, text string) {
	s.text.WriteString(joint)
	s.text.WriteString(text)
	s.parts += parts(joint) + parts(text)
	s.gap = ""
}

func (s *Splitter) empty() bool { return s.text.Len() == 0 }

// fresh reports whether text holds something that no earlier chunk holds.
func (s *Splitter) fresh() bool { return s.text.Len() > s.repeat }

// drop forgets the text, or what was repeated.
func (s *Splitter) drop() {
	s.text.Reset()
	s.parts, s.repeat, s.gap = 0, 0, ""
}

// shrink shortens repeated text from its start by at least over parts.
func (s *Splitter) shrink(over int) {
	end := tail(s.text.String(), s.parts-over)
	s.drop()
	s.add("", end)
	s.repeat = len(end)
}

// flush emits the chunk, if it holds anything new, and begins the next one, with the end of it
// if flows.
func (s *Splitter) flush(flows bool) {
	text := strings.TrimRightFunc(s.text.String(), unicode.IsSpace)
	gap := s.text.String()[len(text):] + s.gap
	fresh := len(text) > s.repeat && s.err == nil
	repeat := s.repeat
	s.drop()
	s.only = false
	if !fresh {
		return
	}
	headings := make([]string, len(s.path))
	for i, h := range s.path {
		headings[i] = h.text
	}
	c := Chunk{Position: s.count, Text: text, Overlap: repeat, Heading: strings.Join(headings, HeadingSeparator), Page: s.page, Tokens: Count(text)}
	s.count++
	if s.err = s.emit(c); s.err != nil || !flows || s.overlap == 0 || s.last == Row || s.last == Code {
		return
	}
	sep := ""
	if strings.Contains(gap, "\n") {
		sep = "\n"
	} else if gap != "" {
		sep = " "
	}
	if end := tail(text, s.overlap-parts(sep)); end != "" {
		s.add("", end+sep)
		s.repeat = s.text.Len()
	}
}

// tail returns the longest end of text of at most most parts that starts with a sentence; if
// there is none, with a word.
func tail(text string, most int) string {
	start := len(text)
	for n := 0; start > 0; {
		r, size := utf8.DecodeLastRuneInString(text[:start])
		if n += weight(r); n > most {
			break
		}
		start -= size
	}
	if start == 0 {
		return text
	}
	rest := text[start:]
	word := 0
	for at := range rest {
		if !border(text[:start+at], rest[at:]) {
			continue
		}
		if word == 0 && at >= 0 {
			word = at + 1
		}
		if sentenceEnds(text[:start+at]) {
			return strings.TrimLeftFunc(rest[at:], unicode.IsSpace)
		}
	}
	if word == 0 {
		return ""
	}
	return strings.TrimLeftFunc(rest[word-1:], unicode.IsSpace)
}

// border reports whether a word may begin at after.
func border(before, after string) bool {
	r, _ := utf8.DecodeRuneInString(after)
	l, _ := utf8.DecodeLastRuneInString(before)
	if unicode.IsMark(r) || unicode.IsSpace(r) {
		return false
	}
	return unicode.IsSpace(l) || dense(l) || dense(r) && !unicode.IsMark(l)
}

// dense reports whether words of a rune's script are written without spaces.
func dense(r rune) bool {
	return r >= 0x2e80 && weight(r) == unit || r >= 0x0e00 && r < 0x1000 || r >= 0x1780 && r < 0x1800
}

// sentenceEnds reports whether a sentence, a line or a paragraph ends before a word that may
// begin here.
func sentenceEnds(before string) bool {
	trimmed := strings.TrimRightFunc(before, unicode.IsSpace)
	if strings.Contains(before[len(trimmed):], "\n\n") {
		return true
	}
	spaced := len(trimmed) < len(before)
	trimmed = strings.TrimRight(trimmed, "\"')]»”’」』）")
	r, _ := utf8.DecodeLastRuneInString(trimmed)
	switch r {
	case '.', '!', '?', '…', ':', ';', '؟', '।', '۔':
		return spaced
	case '。', '！', '？', '．', '；':
		return true
	}
	return false
}

// sentences returns the length of the first sentence of text, with the white space after it.
func sentences(text string) int {
	for at, r := range text {
		switch r {
		case '\n':
			if at+1 < len(text) && text[at+1] == '\n' {
				return afterSpace(text, at)
			}
		case '.', '!', '?', '…', '؟', '।', '۔', '。', '！', '？', '．':
			end := at + utf8.RuneLen(r)
			for {
				q, size := utf8.DecodeRuneInString(text[end:])
				if size == 0 || !strings.ContainsRune("\"')]»”’」』）.!?…", q) {
					break
				}
				end += size
			}
			if r == '。' || r == '！' || r == '？' || r == '．' {
				return afterSpace(text, end)
			}
			if next := afterSpace(text, end); next > end {
				return next
			}
		}
	}
	return len(text)
}

// lineBreaks returns the length of the first line of text.
func lineBreaks(text string) int {
	if at := strings.IndexByte(text, '\n'); at >= 0 {
		return at + 1
	}
	return len(text)
}

func afterSpace(text string, at int) int {
	rest := strings.TrimLeftFunc(text[at:], unicode.IsSpace)
	return len(text) - len(rest)
}

// fit returns how many bytes of text fit into room: all of them, or to the last border of a
// word, or of a rune if a word fills more than half of room.
func fit(text string, room int) int {
	n, end, word, wordParts := 0, 0, 0, 0
	for at, r := range text {
		if at > 0 && border(text[:at], text[at:]) {
			word, wordParts = at, n
		}
		w := weight(r)
		if n+w > room {
			if word > 0 && wordParts >= room/2 {
				return word
			}
			// Marks stay with their letter.
			for back := end; back > 0 && end-back < 32; {
				q, _ := utf8.DecodeRuneInString(text[back:])
				if !unicode.IsMark(q) && q != 0x200d {
					return back
				}
				_, size := utf8.DecodeLastRuneInString(text[:back])
				back -= size
			}
			return end
		}
		n += w
		end = at + utf8.RuneLen(r)
		if r == utf8.RuneError {
			_, size := utf8.DecodeRuneInString(text[at:])
			end = at + size
		}
	}
	return len(text)
}

func runeStart(text string, at int) int {
	for at > 0 && !utf8.RuneStart(text[at]) {
		at--
	}
	return at
}
