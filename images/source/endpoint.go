package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	imagename "github.com/sandbox-runtime/sandbox-runtime/images/name"
)

// endpoint is one repository of one registry or mirror.
type endpoint struct {
	// host is for people and credentials, such as "docker.io"; registry is the host that is asked.
	host       string
	registry   name.Registry
	repository string
	options    Options
	guard      *guard

	// mu guards the fields below.
	mu sync.Mutex
	// client is nil until the first connection.
	client *http.Client
	// unreached is the error of the first connection. An image asks a dead mirror once, not for each object.
	unreached error
	// unsearched is the error of a search for credentials.
	unsearched error
}

func newEndpoint(host, repository string, o Options) (*endpoint, error) {
	var how []name.Option
	if slices.Contains(o.PlainHTTP, host) || isLoopback(hostname(host)) {
		how = append(how, name.Insecure)
	}
	registry, err := name.NewRegistry(host, how...)
	if err != nil {
		return nil, err
	}
	return &endpoint{host: host, registry: registry, repository: repository, options: o, guard: newGuard(registry.RegistryStr(), o)}, nil
}

// newEndpoints are the mirrors of a registry, and the registry.
func newEndpoints(ref Reference, o Options) ([]*endpoint, error) {
	for _, host := range slices.Concat(o.PlainHTTP, o.TokenHosts) {
		if _, err := name.NewRegistry(host); err != nil || host == "" {
			return nil, fmt.Errorf("invalid host %q: use HOST[:PORT]", host)
		}
	}
	var all []*endpoint
	for _, mirror := range o.Mirrors[ref.Host] {
		// The grammar of references keeps everything else out of the path of requests.
		text := strings.TrimSuffix(mirror, "/") + "/" + ref.Repository
		named, err := imagename.Parse(text + ":latest")
		if err != nil || named.Host+"/"+named.Repository != text {
			return nil, fmt.Errorf("invalid mirror %q: use HOST[:PORT][/PREFIX]", mirror)
		}
		e, err := newEndpoint(named.Host, named.Repository, o)
		if err != nil {
			return nil, fmt.Errorf("mirror %q: %w", mirror, err)
		}
		all = append(all, e)
	}
	e, err := newEndpoint(ref.Host, ref.Repository, o)
	return append(all, e), err
}

func (e *endpoint) close() { e.guard.close() }

// connect asks the registry for its way of authentication, once.
func (e *endpoint) connect(ctx context.Context) (*http.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client != nil || e.unreached != nil {
		return e.client, e.unreached
	}
	client, err := e.reachLocked(ctx)
	if err != nil {
		if ctx.Err() == nil {
			e.unreached = err
		}
		return nil, err
	}
	e.client = client
	return client, nil
}

// credentialLocked finds the credential. Most images are public, so Note gets the error of a search, and the registry decides.
func (e *endpoint) credentialLocked(ctx context.Context) (Credential, error) {
	found, err := e.options.Credentials.Lookup(ctx, e.host, e.repository)
	if ctx.Err() != nil {
		return Credential{}, ctx.Err()
	}
	if err != nil {
		e.unsearched = err
		e.options.Note(line(err.Error()+"; the pull goes on without these credentials", maxMessage))
	}
	return found, nil
}

// blameCredentialsLocked adds the error of a search for credentials to a refusal that credentials could have prevented.
// The status of a private image can be 404.
func (e *endpoint) blameCredentialsLocked(err error) error {
	status := statusOf(err)
	if e.unsearched == nil || status != http.StatusUnauthorized && status != http.StatusForbidden && status != http.StatusNotFound {
		return err
	}
	return fmt.Errorf("%w; credentials were missing: %w", err, e.unsearched)
}

func (e *endpoint) blameCredentials(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.blameCredentialsLocked(err)
}

// reachLocked returns a client that authenticates as the registry wants it.
func (e *endpoint) reachLocked(ctx context.Context) (*http.Client, error) {
	found, err := e.credentialLocked(ctx)
	if err != nil {
		return nil, err
	}
	auth := authn.Anonymous
	if found != (Credential{}) {
		auth = authn.FromConfig(authn.AuthConfig{Username: found.Username, Password: found.Password,
			IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken})
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.options.patience.connect, errors.New("the registry does not become ready"))
	defer cancel()
	lowest := transport.NewUserAgent(&retrier{inner: e.guard, patience: e.options.patience}, "sandbox-runtime")
	scope := e.registry.Repo(e.repository).Scope(transport.PullScope)
	way, err := transport.NewWithContext(ctx, e.registry, auth, lowest, []string{scope})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, e.blameCredentialsLocked(redact(err))
	}
	return &http.Client{Transport: way, CheckRedirect: checkRedirect}, nil
}

// do sends a request for a part of the repository, such as "manifests" and "latest".
func (e *endpoint) do(ctx context.Context, method, part, object string, header http.Header) (*http.Response, error) {
	client, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	// The library's transport puts the scheme in that the registry speaks.
	u := url.URL{Scheme: "https", Host: e.registry.RegistryStr(), Path: "/v2/" + e.repository + "/" + part + "/" + object}
	request, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header = header
	response, err := client.Do(request)
	return response, redact(err)
}

// head returns the digest of a tag. The digest is empty if the registry does not tell it.
func (e *endpoint) head(ctx context.Context, tag string) (string, error) {
	response, err := e.do(ctx, http.MethodHead, "manifests", tag, acceptManifests())
	if err != nil {
		return "", err
	}
	response.Body.Close()
	digest := response.Header.Get("Docker-Content-Digest")
	if response.StatusCode != http.StatusOK || !validDigest(digest) {
		return "", nil
	}
	return digest, nil
}

func acceptManifests() http.Header {
	h := http.Header{}
	for _, t := range slices.Concat(manifestTypes, indexTypes) {
		h.Add("Accept", string(t))
	}
	return h
}

// manifest returns the manifest of a tag or digest, and the media type that the registry says. It asks again after a cut.
func (e *endpoint) manifest(ctx context.Context, id string) ([]byte, types.MediaType, error) {
	for tries := 1; ; tries++ {
		text, declared, err := e.askManifest(ctx, id)
		if !errors.As(err, new(*temporaryError)) || ctx.Err() != nil || tries >= maxTries {
			return text, declared, err
		}
		if err := e.options.patience.pause(ctx, tries, 0); err != nil {
			return nil, "", err
		}
	}
}

func (e *endpoint) askManifest(ctx context.Context, id string) ([]byte, types.MediaType, error) {
	response, err := e.do(ctx, http.MethodGet, "manifests", id, acceptManifests())
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, "", e.blameCredentials(statusError(response))
	}
	if response.ContentLength > maxManifest {
		return nil, "", fmt.Errorf("the manifest has %d bytes; at most %d are allowed", response.ContentLength, maxManifest)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxManifest+1))
	if err != nil {
		return nil, "", &temporaryError{err}
	}
	if len(text) > maxManifest {
		return nil, "", fmt.Errorf("the manifest is larger than %d bytes", maxManifest)
	}
	if validDigest(id) && digestOf(text) != id {
		return nil, "", fmt.Errorf("manifest %s: the server sent another content: its digest is %s", id, digestOf(text))
	}
	return text, mediaType(response.Header.Get("Content-Type")), nil
}

// blob asks for an object from an offset on. The error is a rejectedError if the server has answered, but not with the rest.
func (e *endpoint) blob(ctx context.Context, digest string, size, offset int64) (io.ReadCloser, int64, error) {
	header := http.Header{"Accept-Encoding": {"identity"}} // the digest is of the bytes as they are sent
	if offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	response, err := e.do(ctx, http.MethodGet, "blobs", digest, header)
	if err != nil {
		return nil, 0, err
	}
	switch {
	case response.StatusCode == http.StatusOK && (response.ContentLength < 0 || response.ContentLength == size):
		return response.Body, 0, nil
	case response.StatusCode == http.StatusOK:
		err = fmt.Errorf("%s: the server has %d bytes, and the manifest says %d", digest, response.ContentLength, size)
	case response.StatusCode == http.StatusPartialContent && offset > 0:
		if err = checkRange(response, offset, size); err == nil {
			return response.Body, offset, nil
		}
		err = fmt.Errorf("%s: %w", digest, err)
	default:
		err = e.blameCredentials(statusError(response))
	}
	response.Body.Close()
	if offset > 0 {
		err = &rejectedError{err}
	}
	return nil, 0, err
}

// checkRange says whether a partial answer is the rest of an object.
func checkRange(response *http.Response, offset, size int64) error {
	var first, last, whole int64
	said := response.Header.Get("Content-Range")
	if n, _ := fmt.Sscanf(said, "bytes %d-%d/%d", &first, &last, &whole); n != 3 || first != offset || last != size-1 || whole != size {
		return fmt.Errorf("the server sent the range %q for bytes %d to %d", line(said, 60), offset, size-1)
	}
	// A range of an encoded object has bytes of the code.
	if code := response.Header.Get("Content-Encoding"); code != "" && !strings.EqualFold(code, "identity") {
		return fmt.Errorf("the server sent a range with the encoding %q", line(code, 60))
	}
	return nil
}

// describe is a status with the errors of its body (distribution-spec v1.1, "Error Codes").
func describe(status int, body []byte) string {
	text := fmt.Sprintf("%d %s", status, http.StatusText(status))
	var answer struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(body, &answer) == nil && len(answer.Errors) > 0 {
		text += " (" + line(answer.Errors[0].Code+": "+answer.Errors[0].Message, 200) + ")"
	}
	return text
}

// addresses are those of an error, with the parts that may be secret: users and queries.
var addresses = regexp.MustCompile(`(https?://)([^/@\s"]*@)?([^\s?"]*)(\?[^\s"]*)?`)

// redact removes users and queries from an error: the query of a redirect's target has a signature that is as good as
// a password.
func redact(err error) error {
	if err == nil {
		return nil
	}
	return readableError{line(addresses.ReplaceAllString(err.Error(), "$1$3"), maxMessage), err}
}
