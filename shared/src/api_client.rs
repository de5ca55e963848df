//! The client of the Kubernetes API: identity, limits, and a count of every request.
//!
//! Owns how a request is bounded and measured. Must not know what is asked.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service};

use crate::metrics::RequestMetrics;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Neither a kubeconfig nor the service account of a pod was found.
    #[error("found no way to reach the Kubernetes API: neither a kubeconfig nor a pod's service account")]
    Config(#[source] kube::config::InferConfigError),
    /// The user agent has characters that a header may not have.
    #[error("the user agent {0:?} is no header value")]
    UserAgent(String),
    /// The configuration was found but does not make a client.
    #[error("the Kubernetes configuration makes no client")]
    Build(#[source] Box<kube::Error>),
}

/// A client from `KUBECONFIG`, `~/.kube/config` or the pod's service account, in this order.
///
/// Each request has `limit` to connect, to send, and to be answered completely; a watch has it to connect and until
/// the first byte, and is closed by kube when it stays idle for longer than its own time. `user_agent` names the
/// binary in the API server's audit log.
///
/// # Errors
/// No configuration was found, or it is not usable.
pub async fn connect(
    user_agent: &str,
    limit: Duration,
    metrics: RequestMetrics,
) -> Result<Client, ClientError> {
    let mut config = Config::infer().await.map_err(ClientError::Config)?;
    let agent =
        HeaderValue::from_str(user_agent).map_err(|_| ClientError::UserAgent(user_agent.to_owned()))?;
    config.headers.push((header::USER_AGENT, agent));
    config.connect_timeout = Some(limit);
    config.write_timeout = Some(limit);
    config.read_timeout = None;
    let service = ClientBuilder::try_from(config)
        .map_err(|source| ClientError::Build(Box::new(source)))?
        .with_layer(&BoundLayer { limit, metrics });
    Ok(service.build())
}

/// The Kubernetes API did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {}", humantime::format_duration(*.0))]
pub struct NoAnswer(Duration);

#[derive(Debug, Clone)]
struct BoundLayer {
    limit: Duration,
    metrics: RequestMetrics,
}

impl<S> Layer<S> for BoundLayer {
    type Service = Bound<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Bound { inner, layer: self.clone() }
    }
}

/// Bounds and measures each request.
#[derive(Debug)]
struct Bound<S> {
    inner: S,
    layer: BoundLayer,
}

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

impl<S, B> Service<Request<Body>> for Bound<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let BoundLayer { limit, metrics } = self.layer.clone();
        let operation = operation(request.method(), request.uri().query().unwrap_or_default());
        let started = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answered = tokio::time::timeout(limit, collect(answer, operation == "watch")).await;
            let answered = answered.unwrap_or_else(|_| Err(NoAnswer(limit).into()));
            metrics.observe(operation, result(&answered), started.elapsed());
            answered
        })
    }
}

/// Awaits the head and, unless the body goes on for ever, the whole body.
async fn collect<B>(
    answer: impl Future<Output = Result<Response<B>, BoxError>>,
    endless: bool,
) -> Result<Answer, BoxError>
where
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    let (head, body) = answer.await?.into_parts();
    let body = if endless {
        body.boxed_unsync()
    } else {
        let bytes = body.collect().await?.to_bytes();
        Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
    };
    Ok(Response::from_parts(head, body))
}

/// The verb of a request, as Kubernetes means it; reads of one object and of many are told apart by `limit` only for
/// watches, the rest is by method.
fn operation(method: &Method, query: &str) -> &'static str {
    let watch = query.split('&').any(|parameter| matches!(parameter, "watch" | "watch=true" | "watch=1"));
    match method.as_str() {
        "GET" if watch => "watch",
        "GET" => "read",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// The outcome in one word of a fixed set.
fn result(answered: &Result<Answer, BoxError>) -> &'static str {
    match answered {
        Err(error) if error.is::<NoAnswer>() => "timeout",
        Err(_) => "unreachable",
        Ok(answer) => match answer.status().as_u16() {
            200..=399 => "ok",
            403 => "forbidden",
            404 => "not_found",
            409 => "conflict",
            422 => "invalid",
            429 => "throttled",
            500.. => "server_error",
            _ => "refused",
        },
    }
}

/// Whether the API server refused to create something because the namespace is being deleted (Kubernetes 1.27 to 1.36
/// answer 403 with this cause): nothing is wrong, everything in it goes.
pub fn namespace_is_ending(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.is_forbidden() && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;

    const LIMIT: Duration = Duration::from_secs(10);

    fn client(metrics: &Metrics, answer: impl FnMut(Request<Body>) -> Served + Send + 'static) -> Client {
        let service =
            BoundLayer { limit: LIMIT, metrics: metrics.api.clone() }.layer(tower::service_fn(answer));
        Client::new(service, "default")
    }

    type Served = BoxFuture<'static, Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>>;

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_is_given_up_after_the_limit_and_counted() {
        let metrics = Metrics::new("test", "0");
        let client = client(&metrics, |_| Box::pin(std::future::pending()));
        let started = tokio::time::Instant::now();
        let error = Api::<Pod>::default_namespaced(client).get("a").await.unwrap_err();
        assert_eq!(started.elapsed(), LIMIT);
        assert!(crate::telemetry::chain(&error).contains("no answer within 10s"), "{error:?}");
        let text = metrics.encode().unwrap();
        assert!(text.contains(r#"api_requests_total{operation="read",result="timeout"} 1"#), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stops_in_the_middle_of_an_answer_is_given_up_too() {
        let metrics = Metrics::new("test", "0");
        let client = client(&metrics, |_| {
            let endless = http_body_util::StreamBody::new(futures::stream::pending::<Result<_, BoxError>>());
            Box::pin(async move { Ok(Response::new(endless.boxed_unsync())) })
        });
        let error = Api::<Pod>::default_namespaced(client).get("a").await.unwrap_err();
        assert!(crate::telemetry::chain(&error).contains("no answer within 10s"), "{error:?}");
    }

    #[tokio::test]
    async fn an_answer_passes_through_and_its_result_is_counted() {
        let metrics = Metrics::new("test", "0");
        let client = client(&metrics, |_| {
            let status =
                br#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#;
            let body = Full::new(Bytes::from_static(status)).map_err(|never| match never {}).boxed_unsync();
            Box::pin(async move { Ok(Response::builder().status(404).body(body)?) })
        });
        let found = Api::<Pod>::default_namespaced(client).get_opt("a").await.unwrap();
        assert!(found.is_none());
        let text = metrics.encode().unwrap();
        assert!(text.contains(r#"api_requests_total{operation="read",result="not_found"} 1"#), "{text}");
    }

    #[test]
    fn a_watch_is_told_from_a_list_and_from_a_label_that_mentions_it() {
        assert_eq!(operation(&Method::GET, "watch=true&limit=5"), "watch");
        assert_eq!(operation(&Method::GET, "limit=5"), "read");
        assert_eq!(operation(&Method::GET, "labelSelector=watch%3Dtrue"), "read");
        assert_eq!(operation(&Method::PATCH, ""), "patch");
    }
}
