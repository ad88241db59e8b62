package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"agentsvc/schemas/pause"
)

const (
	// patience bounds a call to the server and the wait for more of an object. An upload has twice
	// that, and a second more for each slowest bytes.
	patience = 10 * time.Second
	slowest  = 1 << 20
	// attempts of a call that fails without an answer, or with one that asks to repeat it.
	attempts = 3

	// sumKey is the metadata of an object with the SHA-256 of its content, in hex.
	sumKey = "Sha256"
)

// bucket keeps files as objects under a prefix of a bucket of an S3-compatible server. An object
// appears complete or not at all, also a large one, which is sent in parts. The server checks the
// checksum of what it gets.
type bucket struct {
	core     minio.Core
	conns    *http.Transport
	at       Location
	spool    string
	patience time.Duration
}

func openBucket(at Location, spool string) (*bucket, error) {
	if spool != "" {
		if err := os.MkdirAll(spool, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory of uploads in flight: %w", err)
		}
	}
	conns := &http.Transport{ // an address of the operator, like Postgres and Redis: neither a proxy nor the guard of tenants' addresses
		DialContext:         (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 2 * patience,
		MaxIdleConns: 64, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute, DisableCompression: true,
	}
	secure := at.endpoint.Scheme == "https"
	core, err := minio.NewCore(at.endpoint.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(at.creds.KeyID, at.creds.Secret, at.creds.Session),
		Secure: secure, Region: at.region, Transport: conns, MaxRetries: attempts,
		TrailingHeaders: secure, // a checksum behind the content; over http each chunk is signed with its SHA-256 instead
	})
	if err != nil {
		return nil, fmt.Errorf("open the store of files: %w", err)
	}
	b := &bucket{*core, conns, at, spool, patience}
	if spool != "" { // it may be there and belong to another user: the first upload would be the first to notice
		f, err := b.create("")
		if err != nil {
			return nil, fmt.Errorf("this user (uid %d) cannot write to the directory of uploads in flight: %w", os.Getuid(), err)
		}
		b.discard(f, "")
	}
	return b, nil
}

func (b *bucket) close() error { b.conns.CloseIdleConnections(); return nil }

// create returns a file that has no name any more, so a killed process leaves nothing.
func (b *bucket) create(string) (*os.File, error) {
	f, err := os.CreateTemp(b.spool, "upload-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (b *bucket) discard(f *os.File, _ string) { f.Close() }

func (b *bucket) publish(ctx context.Context, f *os.File, _, key string, size int64, sum [sha256.Size]byte) error {
	ctx, cancel := context.WithTimeout(ctx, 2*b.patience+time.Duration(size/slowest)*time.Second)
	defer cancel()
	err := settled(ctx, func() error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err := b.core.Client.PutObject(ctx, b.at.bucket, b.at.prefix+key, f, size, minio.PutObjectOptions{
			UserMetadata: map[string]string{sumKey: hex.EncodeToString(sum[:])}, AutoChecksum: minio.ChecksumCRC64NVME})
		return err
	})
	if err != nil {
		return b.refused(err)
	}
	f.Close() // nothing was written to it since
	return nil
}

func (b *bucket) open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx)) // of the body, which is read after the caller's ctx has ended
	late := time.AfterFunc(b.patience, cancel)
	left := context.AfterFunc(ctx, cancel)
	body, object, _, err := b.core.GetObject(life, b.at.bucket, b.at.prefix+key, minio.GetObjectOptions{})
	late.Stop()
	left()
	if err != nil {
		cancel()
		return nil, 0, fmt.Errorf("open %s: %w", key, b.wrong(err))
	}
	return &content{body: body, key: key, patience: b.patience, cancel: cancel, left: object.Size, hash: sha256.New(), want: object.UserMetadata[sumKey]}, object.Size, nil
}

// content is the content of an object. It withholds the last bytes of a damaged one.
type content struct {
	body     io.ReadCloser
	key      string
	patience time.Duration
	cancel   context.CancelFunc
	left     int64
	hash     hash.Hash
	want     string // in hex; empty if the object has none
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	if c.left == 0 && c.want == "" || len(p) == 0 {
		return 0, io.EOF
	}
	silent := time.AfterFunc(c.patience, c.cancel)
	n, err := c.body.Read(p)
	silent.Stop()
	c.left -= int64(n)
	c.hash.Write(p[:n])
	if c.left == 0 && c.want != "" {
		if c.want != hex.EncodeToString(c.hash.Sum(nil)) {
			failures.WithLabelValues("read").Inc()
			return 0, fmt.Errorf("%w: %s", ErrCorrupt, c.key)
		}
		c.want = ""
	}
	if err != nil && (err != io.EOF || c.left > 0) {
		failures.WithLabelValues("read").Inc()
		return n, fmt.Errorf("%w: read %s: %w", ErrUnavailable, c.key, err)
	}
	return n, err
}

// Close implements io.Closer.
func (c *content) Close() error {
	c.cancel()
	return c.body.Close()
}

func (b *bucket) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	if err := b.wrong(b.core.RemoveObject(ctx, b.at.bucket, b.at.prefix+name, minio.RemoveObjectOptions{})); !absent(err) {
		return err
	}
	return nil
}

func (b *bucket) abandon(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	if err := b.wrong(b.core.RemoveIncompleteUpload(ctx, b.at.bucket, b.at.prefix+key)); !absent(err) {
		return err
	}
	return nil
}

func (b *bucket) write(ctx context.Context, name, content string) error {
	return b.refused(settled(ctx, func() error { return b.put(ctx, name, content, minio.PutObjectOptions{}) }))
}

// settled uploads, and again while the server answers 409: another operation was under way at the same key, or,
// where the server keeps objects in directories, in the same directory. An upload has the same content each time.
func settled(ctx context.Context, upload func() error) error {
	for try := 1; ; try++ {
		err := upload()
		if r := new(minio.ErrorResponse); try == attempts || !errors.As(err, r) || r.StatusCode != http.StatusConflict {
			return err
		}
		if !pause.For(ctx, time.Duration(try)*50*time.Millisecond) {
			return err
		}
	}
}

func (b *bucket) put(ctx context.Context, name, content string, o minio.PutObjectOptions) error {
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	_, err := b.core.Client.PutObject(ctx, b.at.bucket, b.at.prefix+name, strings.NewReader(content), int64(len(content)), o)
	return err
}

func (b *bucket) read(ctx context.Context, name string) (string, error) {
	f, size, err := b.open(ctx, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxKey))
	if err == nil && int64(len(content)) != size {
		err = fmt.Errorf("%w: %s", ErrCorrupt, name)
	}
	return string(content), err
}

func (b *bucket) stat(ctx context.Context, name string) (info, error) {
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	o, err := b.core.StatObject(ctx, b.at.bucket, b.at.prefix+name, minio.StatObjectOptions{})
	if err != nil {
		return info{}, fmt.Errorf("look at %s: %w", name, b.wrong(err))
	}
	i := info{name: name, size: o.Size, modified: o.LastModified}
	if sum, err := hex.DecodeString(o.UserMetadata[sumKey]); err == nil && len(sum) == sha256.Size {
		i.sum = (*[sha256.Size]byte)(sum)
	}
	return i, nil
}

func (b *bucket) name(ctx context.Context, content string) error {
	var o minio.PutObjectOptions
	o.SetMatchETagExcept("*") // of several concurrent callers one is first
	err := b.put(ctx, identity, content, o)
	if r := new(minio.ErrorResponse); errors.As(err, r) && (r.StatusCode == http.StatusPreconditionFailed || r.StatusCode == http.StatusConflict) {
		return nil
	}
	return b.refused(err)
}

func (b *bucket) list(ctx context.Context, under string, page func([]info) error) error {
	prefix := b.at.prefix
	if under != "" {
		prefix += under + "/"
	}
	var found []info
	for o := range b.core.ListObjectsIter(ctx, b.at.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return b.wrong(o.Err)
		}
		name := strings.TrimPrefix(o.Key, b.at.prefix)
		if under == "" && check(name) != nil { // not one of ours
			continue
		}
		found = append(found, info{name: name, size: o.Size, modified: o.LastModified})
		if len(found) == walkPage {
			if err := page(found); err != nil {
				return err
			}
			found = nil
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(found) == 0 {
		return nil
	}
	return page(found)
}

// refused is wrong for an upload.
func (b *bucket) refused(err error) error {
	if err = b.wrong(err); absent(err) {
		return fmt.Errorf("%w: %s: the server answered 404 to an upload: is the endpoint an S3-compatible server?", ErrUnavailable, b.at)
	}
	return err
}

// wrong says what an error of the server means, without the parts of it that the server chose.
func (b *bucket) wrong(err error) error {
	if err == nil {
		return nil
	}
	r := new(minio.ErrorResponse)
	if !errors.As(err, r) {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, b.at, err)
	}
	text := ""
	switch r.Code {
	case "NoSuchKey", "NoSuchUpload":
		return ErrNotFound
	case "NoSuchBucket":
		text = "the bucket does not exist"
	case "InvalidAccessKeyId", "InvalidAccessKeyID":
		text = "the server does not know the access key id"
	case "SignatureDoesNotMatch":
		text = "the secret access key does not belong to the access key id"
	case "ExpiredToken", "ExpiredTokenException", "InvalidToken":
		text = "the session token has expired or is invalid"
	case "AccessDenied":
		text = "the credentials lack the rights to read, write, list and delete objects and to list multipart uploads"
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "AuthorizationQueryParametersError", "IllegalLocationConstraintException":
		text = "region=" + b.at.region + " is not the region of the bucket, or the endpoint is not the server of that region"
		if r.Region != "" && r.Region != b.at.region {
			text += ", which is " + r.Region
		}
	case "RequestTimeTooSkewed":
		text = "this machine's clock differs too much from the server's"
	default:
		text = fmt.Sprintf("the server answered %d %s", r.StatusCode, r.Code)
	}
	return fmt.Errorf("%w: %s: %s", ErrUnavailable, b.at, text)
}
