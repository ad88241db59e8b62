package read

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Media types of the files that are read.
const (
	typeText     = "text/plain"
	typeMarkdown = "text/markdown"
	typeHTML     = "text/html"
	typeCSV      = "text/csv"
	typeJSON     = "application/json"
	typePDF      = "application/pdf"
	typeDocx     = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
	typePptx     = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
	typeXlsx     = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
)

type kind struct {
	mediaType string
	read      func(*file) error
}

// sampleBytes is how much of the start of a file decides what it is.
const sampleBytes = 64 << 10

// hintOf returns what a name or a media type says a text may be: an extension in lower case.
func hintOf(name, mediaType string) string {
	name = name[strings.LastIndexAny(name, `/\`)+1:]
	if ext := strings.ToLower(strings.TrimPrefix(path.Ext(name), ".")); ext != "" {
		switch ext {
		case "markdown", "mdown", "mkd":
			return "md"
		case "htm", "xhtml":
			return "html"
		case "tsv", "tab":
			return "csv"
		case "jsonl", "ndjson", "geojson":
			return "json"
		case "text", "log":
			return "txt"
		}
		return ext
	}
	switch t, _, _ := mime.ParseMediaType(mediaType); t {
	case typeMarkdown, "text/x-markdown":
		return "md"
	case typeHTML, "application/xhtml+xml":
		return "html"
	case typeCSV, "text/tab-separated-values":
		return "csv"
	case typeJSON, "application/x-ndjson":
		return "json"
	case typeText:
		return "txt"
	}
	return ""
}

// strangers are the first bytes of files that are not read, and what they are.
var strangers = []struct{ magic, what string }{
	{"\x89PNG", "a picture"}, {"\xff\xd8\xff", "a picture"}, {"GIF8", "a picture"}, {"BM\x00", "a picture"}, {"II*\x00", "a picture"}, {"MM\x00*", "a picture"},
	{"{\\rtf", "an RTF document; save it as .docx"},
	{"\x7fELF", "a program"}, {"MZ", "a program"}, {"\xca\xfe\xba\xbe", "a program"}, {"\xcf\xfa\xed\xfe", "a program"}, {"\x00asm", "a program"},
	{"\x1f\x8b", "a compressed archive"}, {"7z\xbc\xaf'\x1c", "a compressed archive"}, {"Rar!", "a compressed archive"}, {"BZh", "a compressed archive"},
	{"\xfd7zXZ\x00", "a compressed archive"}, {"(\xb5/\xfd", "a compressed archive"},
	{"ID3", "a sound"}, {"OggS", "a sound or a video"}, {"fLaC", "a sound"}, {"RIFF", "a picture, sound or video"}, {"\x1aE\xdf\xa3", "a video"},
	{"SQLite format 3\x00", "a database"}, {"%!PS", "a PostScript document; save it as PDF"},
}

func unreadable(what string) error { return faultf("files of this kind cannot be read: %s", what) }

// detect finds out what a file is, by its content.
func (f *file) detect() (kind, error) {
	if f.size <= 0 {
		return kind{}, fault("the file is empty")
	}
	head := make([]byte, min(f.size, sampleBytes))
	n, err := f.in.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return kind{}, err
	}
	head = head[:n]
	if bytes.Contains(head[:min(len(head), 1024)], []byte("%PDF-")) && !bytes.Contains(head[:bytes.Index(head, []byte("%PDF-"))], []byte("<")) {
		return kind{typePDF, readPDF}, nil
	}
	for _, s := range strangers {
		if bytes.HasPrefix(head, []byte(s.magic)) && (len(s.magic) > 2 || binaryBytes(head) || s.magic == "\x1f\x8b") {
			return kind{}, unreadable(s.what)
		}
	}
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		return f.detectZip()
	case bytes.HasPrefix(head, []byte("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")):
		return kind{}, f.oldOffice()
	case len(head) > 12 && string(head[4:8]) == "ftyp":
		return kind{}, unreadable("a video or a picture")
	}
	sample, ok := decodedSample(head)
	if !ok {
		return kind{}, unreadable("it is neither text nor a document of a known kind")
	}
	if strings.TrimSpace(sample) == "" && f.size <= sampleBytes {
		return kind{}, fault("the file holds no text")
	}
	return f.detectText(sample), nil
}

// Plain reports whether a file is text: its reader decodes no archive, no stream and no table of
// objects, and takes time and memory in proportion to its size.
func Plain(content []byte) bool {
	f := &file{in: bytes.NewReader(content), size: int64(len(content)), lim: DefaultLimits}
	k, err := f.detect()
	return err == nil && k.mediaType != typePDF && k.mediaType != typeDocx && k.mediaType != typePptx && k.mediaType != typeXlsx
}

// oldOffice tells apart what begins like a compound file: a document of an old office program,
// or one that is encrypted.
func (f *file) oldOffice() error {
	const directory = 1 << 20 // the names of a compound file's streams are in its first or last part
	for _, at := range []int64{0, max(0, f.size-directory)} {
		part := make([]byte, min(f.size-at, directory))
		n, _ := f.in.ReadAt(part, at) // what cannot be read holds no name
		name := make([]byte, 0, 64)
		for _, r := range "EncryptedPackage" {
			name = append(name, byte(r), 0)
		}
		if bytes.Contains(part[:n], name) {
			return fault("the file is protected by a password")
		}
	}
	return unreadable("a document of an old office program; save it as .docx, .xlsx, .pptx or PDF")
}

// binaryBytes reports whether bytes look like no text in a known encoding.
func binaryBytes(head []byte) bool {
	_, ok := decodedSample(head)
	return !ok
}

// decodedSample decodes the start of a text. It reports false for what is no text.
func decodedSample(head []byte) (string, bool) {
	dec := encodingOf(head)
	text, _ := dec.bytes(head) // a sample may end inside a character
	controls, runes, bad := 0, 0, 0
	for _, r := range text {
		runes++
		switch {
		case r == 0:
			return "", false
		case r < ' ' && !unicode.IsSpace(r) && r != 0x1b && r != '\b', r == 0x7f:
			controls++
		case r == utf8.RuneError, r >= 0x80 && r < 0xa0:
			bad++
		}
	}
	// A few stray bytes do not make a text binary.
	return text, controls*50 <= runes && (bad*10 <= runes || runes < 4)
}

var (
	htmlStart = regexp.MustCompile(`(?i)\A(?:\s|<!--[^>]*-->|<\?xml[^>]*\?>)*<(?:!doctype\s+html|html|head|body)[\s>]`)
	htmlTags  = regexp.MustCompile(`(?i)</(?:p|div|table|ul|h[1-6]|body|span|a|li)\s*>`)
	mdHeading = regexp.MustCompile(`(?m)^#{1,6} \S`)
	mdFence   = regexp.MustCompile("(?m)^(?:```|~~~)")
	mdLink    = regexp.MustCompile(`\[[^\]\n]+\]\([^)\s]+\)`)
	mdList    = regexp.MustCompile(`(?m)^[-*+] \S`)
	mdStrong  = regexp.MustCompile(`\*\*[^*\n]+\*\*`)
	mdTable   = regexp.MustCompile(`(?m)^\|?\s*:?-{3,}:?\s*\|`)
)

// detectText tells apart the kinds of text.
func (f *file) detectText(sample string) kind {
	text, md, csv := kind{typeText, readText}, kind{typeMarkdown, readMarkdown}, kind{typeCSV, readCSV}
	switch {
	case htmlStart.MatchString(sample):
		return kind{typeHTML, readHTML}
	case f.hint == "html" && (htmlTags.MatchString(sample) || strings.Contains(sample, "<")):
		return kind{typeHTML, readHTML}
	}
	start := strings.TrimLeftFunc(sample, unicode.IsSpace)
	if f.hint == "json" || strings.HasPrefix(start, "{") || strings.HasPrefix(start, "[") && f.hint != "md" && f.hint != "csv" && f.hint != "txt" {
		if f.isJSON() {
			return kind{typeJSON, readJSON}
		}
	}
	switch f.hint {
	case "md":
		return md
	case "csv":
		return csv
	case "txt":
		return text
	}
	if len(htmlTags.FindAllStringIndex(sample, 4)) >= 3 && strings.HasPrefix(start, "<") && !strings.HasPrefix(start, "<?xml") {
		return kind{typeHTML, readHTML}
	}
	score := 0
	for _, sign := range []*regexp.Regexp{mdHeading, mdFence, mdLink, mdList, mdStrong, mdTable} {
		if sign.MatchString(sample) {
			score++
		}
	}
	switch {
	case score >= 2:
		return md
	case looksLikeCSV(sample):
		return csv
	}
	return text
}

// looksLikeCSV reports whether all lines of a text have the same number of fields, at least
// three of them, or two that a tab separates.
func looksLikeCSV(sample string) bool {
	all := strings.Split(strings.TrimRight(strings.ReplaceAll(sample, "\r\n", "\n"), "\n"), "\n")
	if len(sample) >= sampleBytes/2 {
		all = all[:len(all)-1] // it may be cut
	}
	if len(all) < 3 {
		return false
	}
	for _, sep := range []string{"\t", ",", ";", "|"} {
		n := strings.Count(all[0], sep)
		same := n >= 2 || n == 1 && sep == "\t"
		for _, l := range all[:min(len(all), 50)] {
			same = same && strings.Count(l, sep) == n
		}
		if same {
			return true
		}
	}
	return false
}

// isJSON reports whether the whole file is JSON: one value or several.
func (f *file) isJSON() bool {
	dec := json.NewDecoder(io.LimitReader(f.decoded(), f.size*4))
	dec.UseNumber()
	for depth, n := 0, 0; ; n++ {
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return n > 0
		}
		if err != nil {
			return false
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxDepth {
				return true // readJSON says what is wrong
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		default:
			if depth == 0 && f.hint != "json" {
				return false // words and numbers in a row are text
			}
		}
	}
}

// maxDepth limits how deep parts of a file are nested.
const maxDepth = 1000

// zipCount returns the number of files that the end of an archive declares; -1 if there is no end.
func (f *file) zipCount() int64 {
	const longest = 22 + 1<<16
	at := max(0, f.size-longest)
	end := make([]byte, f.size-at)
	n, _ := f.in.ReadAt(end, at) // checked by what is found
	i := bytes.LastIndex(end[:n], []byte("PK\x05\x06"))
	if i < 0 || i+12 > n {
		return -1
	}
	// An archive of the 64-bit form has more files than are read here.
	return int64(binary.LittleEndian.Uint16(end[i+10:]))
}
