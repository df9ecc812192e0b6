//! The objects of one account, and those that all share.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    LimitRange, LimitRangeItem, LimitRangeSpec, Namespace, ResourceQuota, ResourceQuotaSpec, ScopeSelector,
    ScopedResourceSelectorRequirement, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use spur_sdk::{Bytes, Millicores, UserName};

use super::caps::{Caps, Dimension};
use super::names;
use crate::model::Account;
use crate::policy::{Burst, PodSecurity, Policy};

/// Labels that everything of ours carries.
pub(crate) fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned())])
}

/// Makes the metadata of one account's objects.
pub(crate) struct Maker<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) namespace: &'a str,
    pub(crate) label: &'a str,
}

impl Maker<'_> {
    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = labels();
        labels.insert(self.policy.key("account"), self.label.to_owned());
        labels
    }

    fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(self.labels()),
            ..ObjectMeta::default()
        }
    }

    pub(crate) fn namespace(&self, account: &Account) -> Namespace {
        let mut labels = self.labels();
        labels.extend(pod_security(self.policy.pod_security));
        let text = |value: &Option<crate::model::Sourced<String>>| {
            value.as_ref().map(|value| value.value.clone()).filter(|value| !value.is_empty())
        };
        let annotations = [
            ("account-name", Some(account.name.to_string())),
            ("description", text(&account.description)),
            ("parent", account.parent.as_ref().map(|parent| parent.value.to_string())),
            ("organization", text(&account.organization)),
        ];
        let annotations =
            annotations.into_iter().filter_map(|(key, value)| Some((self.policy.key(key), value?))).collect();
        Namespace {
            metadata: ObjectMeta {
                name: Some(self.namespace.to_owned()),
                labels: Some(labels),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        }
    }

    pub(crate) fn quota(&self, caps: &Caps, pods: Option<u64>) -> ResourceQuota {
        let mut hard: BTreeMap<String, Quantity> = BTreeMap::new();
        for (key, cap) in self.policy.objects.iter().filter(|(key, _)| *key != "pods") {
            let text =
                if crate::policy::file::is_storage(key) { Bytes(*cap).to_string() } else { cap.to_string() };
            hard.insert(key.clone(), Quantity(text));
        }
        for (dimension, cap) in caps {
            let amount = dimension.display_amount(cap.amount);
            let limited = self.policy.burst == Burst::Limited && !matches!(dimension, Dimension::Extended(_));
            if limited {
                hard.insert(format!("limits.{dimension}"), Quantity(amount.clone()));
            }
            hard.insert(dimension.quota_key(), Quantity(amount));
        }
        if let Some(pods) = pods {
            hard.insert("pods".to_owned(), Quantity(pods.to_string()));
        }
        ResourceQuota {
            metadata: self.metadata(names::QUOTA),
            spec: Some(ResourceQuotaSpec { hard: Some(hard), ..ResourceQuotaSpec::default() }),
            ..ResourceQuota::default()
        }
    }

    /// Keeps pods of the two classes that preempt everything out, whatever else is allowed.
    pub(crate) fn priority_quota(&self) -> ResourceQuota {
        let selector = ScopeSelector {
            match_expressions: Some(vec![ScopedResourceSelectorRequirement {
                operator: "In".to_owned(),
                scope_name: "PriorityClass".to_owned(),
                values: Some(vec!["system-cluster-critical".to_owned(), "system-node-critical".to_owned()]),
            }]),
        };
        ResourceQuota {
            metadata: self.metadata(names::PRIORITY_QUOTA),
            spec: Some(ResourceQuotaSpec {
                hard: Some(BTreeMap::from([("pods".to_owned(), Quantity("0".to_owned()))])),
                scope_selector: Some(selector),
                ..ResourceQuotaSpec::default()
            }),
            ..ResourceQuota::default()
        }
    }

    /// Defaults and minimums of a container, never above the quota. A dimension whose cap is below the minimum
    /// gets neither.
    pub(crate) fn limit_range(&self, caps: &Caps) -> LimitRange {
        let (default, least) = (self.policy.default_request, self.policy.min_request);
        let mut requests = BTreeMap::new();
        let mut min = BTreeMap::new();
        for (dimension, default, least) in
            [(Dimension::Cpu, default.cpu, least.cpu), (Dimension::Memory, default.memory, least.memory)]
        {
            let cap = caps.get(&dimension).map_or(u64::MAX, |cap| cap.amount);
            if cap < least || cap == 0 {
                continue;
            }
            let spell = |amount: u64| match dimension {
                Dimension::Cpu => Quantity(Millicores(amount).to_string()),
                _ => Quantity(Bytes(amount).to_string()),
            };
            requests.insert(dimension.to_string(), spell(default.min(cap)));
            if least > 0 {
                min.insert(dimension.to_string(), spell(least));
            }
        }
        let storage = "ephemeral-storage";
        let storage_cap = self.policy.objects.get("requests.ephemeral-storage").copied().unwrap_or(u64::MAX);
        let storage_least = least.ephemeral_storage.unwrap_or(0);
        if let Some(default) = default.ephemeral_storage.filter(|_| storage_cap >= storage_least.max(1)) {
            requests.insert(storage.to_owned(), Quantity(Bytes(default.min(storage_cap)).to_string()));
            if storage_least > 0 {
                min.insert(storage.to_owned(), Quantity(Bytes(storage_least).to_string()));
            }
        }
        let filled = |map: BTreeMap<String, Quantity>| Some(map).filter(|map| !map.is_empty());
        LimitRange {
            metadata: self.metadata(names::DEFAULTS),
            spec: Some(LimitRangeSpec {
                limits: vec![LimitRangeItem {
                    type_: "Container".to_owned(),
                    default_request: filled(requests),
                    min: filled(min),
                    ..LimitRangeItem::default()
                }],
            }),
        }
    }

    /// The namespace's own `default` ServiceAccount, without a token in every pod.
    pub(crate) fn default_service_account(&self) -> ServiceAccount {
        ServiceAccount {
            metadata: self.metadata("default"),
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        }
    }

    pub(crate) fn role_binding<'u>(
        &self,
        name: &str,
        role: &str,
        users: impl Iterator<Item = &'u UserName>,
    ) -> RoleBinding {
        let subjects: BTreeSet<String> =
            users.map(|user| names::SERVICE_ACCOUNTS.map(user.as_str())).collect();
        let subjects = subjects.into_iter().map(|name| Subject {
            kind: "ServiceAccount".to_owned(),
            name,
            namespace: Some(names::USERS_NAMESPACE.to_owned()),
            api_group: None,
        });
        RoleBinding {
            metadata: self.metadata(name),
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".to_owned(),
                kind: "ClusterRole".to_owned(),
                name: role.to_owned(),
            },
            subjects: Some(subjects.collect()).filter(|subjects: &Vec<_>| !subjects.is_empty()),
        }
    }
}

fn pod_security(level: PodSecurity) -> [(String, String); 3] {
    let (enforce, warn) = match level {
        PodSecurity::Baseline => ("baseline", "restricted"),
        PodSecurity::Restricted => ("restricted", "restricted"),
    };
    [("enforce", enforce), ("warn", warn), ("audit", warn)]
        .map(|(mode, level)| (format!("{}{mode}", names::POD_SECURITY), level.to_owned()))
}

/// The namespace of the users' ServiceAccounts. Nothing runs in it and no tenant has a right in it.
pub(crate) fn users_namespace() -> Namespace {
    let mut labels = labels();
    labels.extend(pod_security(PodSecurity::Restricted));
    Namespace {
        metadata: ObjectMeta {
            name: Some(names::USERS_NAMESPACE.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

pub(crate) fn user(user: &UserName, policy: &Policy) -> ServiceAccount {
    ServiceAccount {
        metadata: ObjectMeta {
            name: Some(names::SERVICE_ACCOUNTS.map(user.as_str())),
            namespace: Some(names::USERS_NAMESPACE.to_owned()),
            labels: Some(labels()),
            annotations: Some(BTreeMap::from([(policy.key("user-name"), user.to_string())])),
            ..ObjectMeta::default()
        },
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

pub(crate) fn cluster_role(name: &str, rules: Vec<PolicyRule>) -> ClusterRole {
    ClusterRole {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(labels()), ..ObjectMeta::default() },
        rules: Some(rules),
        ..ClusterRole::default()
    }
}
