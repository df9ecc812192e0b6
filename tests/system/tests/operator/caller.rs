//! Requests by path, as one user.

use anyhow::{Context, Result};
use http::{Method, Request};
use kube::Client;
use serde_json::Value;

/// One who asks the API server.
pub(crate) struct Caller(pub(crate) Client);

impl Caller {
    async fn call(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Result<Value> {
        let request = Request::builder().method(method.clone()).uri(path).header("content-type", kind);
        let answer = self.0.request(request.body(body)?).await;
        answer.with_context(|| format!("{method} {path}"))
    }

    /// Reads.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.call(Method::GET, path, "application/json", Vec::new()).await
    }

    /// Creates.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(Method::POST, path, "application/json", body.to_string().into_bytes()).await
    }

    /// Changes, by a merge patch.
    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.call(Method::PATCH, path, "application/merge-patch+json", body.to_string().into_bytes()).await
    }

    /// Deletes.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value> {
        self.call(Method::DELETE, path, "application/json", Vec::new()).await
    }

    /// Asks by a dry run whether somebody else might create or apply an object, by impersonation. What has its name in
    /// the path is applied.
    pub(crate) async fn ask_as(
        &self,
        user: &str,
        groups: &[&str],
        path: &str,
        body: &Value,
    ) -> Result<Value> {
        let applied = path.rsplit('/').next() == body["metadata"]["name"].as_str();
        let (method, query, kind) = if applied {
            (Method::PATCH, "&fieldManager=test&force=true", "application/apply-patch+yaml")
        } else {
            (Method::POST, "", "application/json")
        };
        let mut request = Request::builder().method(method).uri(format!("{path}?dryRun=All{query}"));
        request = request.header("content-type", kind).header("impersonate-user", user);
        for group in groups {
            request = request.header("impersonate-group", *group);
        }
        let answer = self.0.request(request.body(body.to_string().into_bytes())?).await;
        answer.with_context(|| format!("dry run of {path}"))
    }
}
